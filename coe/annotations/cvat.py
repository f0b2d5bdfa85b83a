"""CVAT's XML 1.1, for images and for videos whose frames are pictures (https://docs.cvat.ai/docs/other/xml_format)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections import defaultdict

from coe.annotations.marked import Findings, MarkedBox, around, around_ellipse, turned
from coe.annotations.picture_index import PictureIndex

_SHAPES = {"box", "polygon", "polyline", "points", "ellipse", "mask", "cuboid", "skeleton"}
_FRAME = re.compile(r"^frame_(\d+)$")


def read(root: xml.Element, index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures of an export to `index`; return the labels of its task or project in their order.

    An image without shapes is a good one. Of tracks each frame counts in which the object is not `outside`; frame 12 is
    the picture `frame_000012`.
    """
    labels = dict.fromkeys(
        name.text or "" for label in root.iterfind("meta//label") if (name := label.find("name")) is not None
    )
    for image in root.iterfind("image"):
        where = f"image {image.get('id', '')}"
        path = index.find([image.get("name", "")], where)
        stated = (int(image.get("width", 0)), int(image.get("height", 0)))
        if path is not None and (size := index.size(path, stated if all(stated) else None)):
            tags = [tag.get("label", "") for tag in image.iterfind("tag")]
            index.add(path, size, _boxes(image, image.get("name", ""), labels, findings), tags)
    if root.find("track") is not None:
        _tracks(root, index, labels, findings)
    return tuple(labels)


def _tracks(root: xml.Element, index: PictureIndex, labels: dict[str, None], findings: Findings) -> None:
    if (root.findtext("meta//frame_filter") or "").strip():
        findings.fault("frames were left out of a video, so its numbers say nothing", "export as 'CVAT for images'")
        return
    frames: dict[int, list[MarkedBox]] = defaultdict(list)
    for track in root.iterfind("track"):
        for shape in track:
            if shape.get("outside") == "1":
                continue
            where = f"track {track.get('id', '')} frame {shape.get('frame', '')}"
            if (box := _box(shape, track.get("label", ""), where, labels, findings)) is not None:
                frames[int(shape.get("frame", "-1"))].append(box)
    pictures = {int(found[1]): path for path in index.paths if (found := _FRAME.match(path.stem))}
    for number in sorted({*frames, *pictures}):
        name = pictures[number].name if number in pictures else f"frame_{number:06d}"
        path = index.find([name], f"frame {number}")
        if path is not None and (size := index.size(path)):
            index.add(path, size, frames[number])


def _boxes(image: xml.Element, name: str, labels: dict[str, None], findings: Findings) -> list[MarkedBox]:
    found = []
    for number, shape in enumerate(image, 1):
        where = f"{shape.tag} {number}"
        if shape.tag in _SHAPES:
            if (box := _box(shape, shape.get("label", ""), f"{name} {where}", labels, findings)) is not None:
                found.append(box)
        else:
            findings.notes[f"<{shape.tag}> without a box were left out"] += 1
    return found


def _box(shape: xml.Element, label: str, where: str, labels: dict[str, None], findings: Findings) -> MarkedBox | None:
    if label not in labels:
        findings.fault("a label is not among those of the task", f"'{label}' ({where})")
        return None
    try:
        points = _points(shape)
    except (KeyError, ValueError):
        points = None
    if not points:
        findings.fault("a shape has no box: boxes, polygons, ellipses and masks have one", where)
        return None
    return around(points, label, where)


def _points(shape: xml.Element) -> list[tuple[float, float]] | None:
    """Return corners of a shape in pixels; raises KeyError or ValueError for numbers that are none."""
    at = {key: value for key, value in shape.attrib.items() if key != "points"}
    turn = float(at.get("rotation", 0))
    if shape.tag == "box":
        left, top, right, bottom = (float(at[key]) for key in ("xtl", "ytl", "xbr", "ybr"))
        return turned(left, top, right, bottom, turn) if turn else [(left, top), (right, bottom)]
    if shape.tag == "polygon":
        pairs = [pair.split(",") for pair in shape.attrib["points"].split(";")]
        return [(float(x), float(y)) for x, y in pairs]
    if shape.tag == "ellipse":
        x, y, rx, ry = (float(at[key]) for key in ("cx", "cy", "rx", "ry"))
        return around_ellipse(x, y, rx, ry, turn)
    if shape.tag == "mask":
        left, top, width, height = (float(at[key]) for key in ("left", "top", "width", "height"))
        return [(left, top), (left + width, top + height)]
    return None
