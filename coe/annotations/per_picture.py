"""Files that are each of one picture: Pascal VOC XML, as LabelImg writes it, and LabelMe JSON.

The formats are those of http://host.robots.ox.ac.uk/pascal/VOC and https://github.com/wkentaro/labelme.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coe.annotations.marked import Findings, MarkedBox, around, turned
from coe.annotations.picture_index import PictureIndex
from coe.errors import first_line

Content = xml.Element | dict[str, Any]
VOC, LABELME = "Pascal VOC", "LabelMe"
_SHAPES = {"rectangle", "rotation", "oriented_rectangle", "quadrilateral", "polygon", "circle", "mask"}
"""The shapes of LabelMe and X-AnyLabeling that have a box."""


def form_of(content: Any) -> str:
    """Return which of the two formats parsed XML or JSON has, "" for none."""
    if isinstance(content, xml.Element):
        return VOC if content.tag == "annotation" else ""
    return LABELME if isinstance(content, dict) and isinstance(content.get("shapes"), list) else ""


def files(folder: Path, findings: Findings) -> tuple[dict[Path, Content], list[Path]]:
    """Return the content of the files in a folder, and its folders, that have one of the formats, and other files.

    A file that cannot be read is a fault: without it, its picture would count as one that nobody marked.
    """
    found: dict[Path, Content] = {}
    others: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in {".xml", ".json"} or path.name.startswith(".") or not path.is_file():
            continue
        try:
            raw = path.read_bytes()
            content: Any = json.loads(raw) if path.suffix.lower() == ".json" else parsed(raw)
        except (OSError, ValueError, LookupError, RecursionError, xml.ParseError) as error:
            what = "a file cannot be read; export it again, or take it out"
            findings.fault(what, f"{path.relative_to(folder).as_posix()} ({first_line(error)})")
            continue
        if form_of(content):
            found[path] = content
        else:
            others.append(path)
    return found, others


def parsed(raw: bytes) -> xml.Element:
    """Return the root of XML; raises ValueError, LookupError, xml.ParseError."""
    if b"<!ENTITY" in raw or b"<!DOCTYPE" in raw:
        raise ValueError("a document type has no place in annotations")
    return xml.fromstring(raw)


def read(contents: Iterable[tuple[Path, Content]], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures of files to `index`; return their labels, sorted. A file without objects is of a good picture.

    A picture is called as its file says, else as that itself is.
    """
    labels: set[str] = set()
    for path, content in contents:
        if isinstance(content, xml.Element):
            name = content.findtext("filename", "")
            sides = content.findtext("size/width"), content.findtext("size/height")
        else:
            name, sides = str(content.get("imagePath") or ""), (content.get("imageWidth"), content.get("imageHeight"))
        picture = index.find(filter(None, (name, path.stem)), path.name)
        try:
            stated = (int(float(sides[0] or 0)), int(float(sides[1] or 0)))
        except (OverflowError, TypeError, ValueError):
            stated = (0, 0)
        if picture is None or not (size := index.size(picture, stated if all(stated) else None)):
            continue
        boxes = []
        objects = content["shapes"] if isinstance(content, dict) else _objects(content)
        for number, one in enumerate(objects, 1):
            where = f"{path.name} object {number}"
            box = _of_voc(one, where) if isinstance(one, xml.Element) else _of_labelme(one, where)
            if box is None:
                findings.fault("a shape has no box: rectangles, polygons and circles have one", where)
            elif not box.label:
                findings.fault("a shape has no label; give it one or delete it", where)
            else:
                boxes.append(box)
                doubt = one.findtext("difficult", "") if isinstance(one, xml.Element) else one.get("difficult")
                if str(doubt).strip().casefold() in ("1", "true"):
                    findings.notes["objects that are marked as difficult were taken as the others"] += 1
        labels.update(box.label for box in boxes)
        flags = {} if isinstance(content, xml.Element) else content.get("flags") or {}
        index.add(picture, size, boxes, [flag for flag, is_set in flags.items() if is_set])
    return tuple(sorted(labels))


def _objects(content: xml.Element) -> list[xml.Element]:
    # The LabelMe that ran in a browser keeps what was deleted.
    return [one for one in content.iter("object") if one.findtext("deleted", "").strip() != "1"]


def _of_voc(one: xml.Element, where: str) -> MarkedBox | None:
    label = one.findtext("name", "").strip()
    try:
        if one.find("robndbox") is not None:  # of roLabelImg, whose angle is in radians
            x, y, width, height, turn = (
                float(one.findtext(f"robndbox/{key}", "")) for key in ("cx", "cy", "w", "h", "angle")
            )
            edges = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            return around(turned(*edges, math.degrees(turn)), label, where)
        if one.find("bndbox") is None and (drawn := one.find("polygon")) is not None:
            xs, ys = (
                [float(p.text or "") for p in drawn.iter() if re.fullmatch(f"{axis}\\d*", p.tag)] for axis in "xy"
            )
            return around([*zip(xs, ys, strict=True)], label, where)
        left, top, right, bottom = (
            float(one.findtext(f"bndbox/{key}", "")) for key in ("xmin", "ymin", "xmax", "ymax")
        )
        turns = (said.findtext("value", "") for said in one.iter("attribute") if said.findtext("name") == "rotation")
        degrees = next((float(turn) for turn in turns if re.fullmatch(r"-?[\d.]+", turn)), 0.0)  # a word is no turn
    except ValueError:
        return None
    if degrees and right > left and bottom > top:  # CVAT turns a box so
        return around(turned(left, top, right, bottom, degrees), label, where)
    return MarkedBox(label, left, top, right, bottom, where)


def _of_labelme(one: Any, where: str) -> MarkedBox | None:
    try:
        points, kind = [(float(x), float(y)) for x, y in one["points"]], one.get("shape_type") or "polygon"
        if kind == "circle":
            (x, y), radius = points[0], math.dist(*points)
            points = [(x - radius, y - radius), (x + radius, y + radius)]
        if kind not in _SHAPES or len(points) < 2:
            return None
        return around(points, str(one.get("label") or "").strip(), where)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
