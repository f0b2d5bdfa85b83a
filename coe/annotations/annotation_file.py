"""Annotations of pictures: COCO JSON, Pascal VOC XML and masks, found by their content; of others, what to export.

The forms are those of https://cocodataset.org/#format-data and http://host.robots.ox.ac.uk/pascal/VOC.
"""

from __future__ import annotations

import json
import re
import warnings
import xml.etree.ElementTree as xml
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coe.annotations.marked import Findings, MarkedBox, MarkedSet, PictureIndex, turned
from coe.errors import ConfigError, first_line, list_few
from coe.helpers.spelling import composed
from coe.pictures.formats import EXTENSIONS
from coe.pictures.label_folders import spelling

_KNOWN = (
    "give COCO JSON, Pascal VOC XML (a file, or a folder of them) or a folder of masks: VIA, CVAT and Label Studio "
    "export COCO, `labelme2coco FOLDER` converts LabelMe, and `coe-experts train --data` takes a YOLO data set"
)
ENDINGS = ("_mask", "-mask", ".mask", "_gt")
"""What may stand behind the name of a picture in that of its mask."""
LOSSLESS = {".png", ".bmp", ".tif", ".tiff"}


@dataclass(frozen=True, slots=True)
class ReadingChoices:
    """What a person decides: labels and their order, and how what does not fit is taken."""

    labels: tuple[str, ...] = ()
    clip: bool = False
    unmarked_good: bool = False


def read(source: Path, images: Path, choices: ReadingChoices, findings: Findings) -> tuple[str, MarkedSet]:
    """Read annotations of the pictures in `images`; return the form's name, and labels with pictures.

    Pictures that `source` does not name are left out, or good ones with `unmarked_good`. Raises ConfigError with all
    faults at once.
    """
    files = [path for path in sorted(source.rglob("*")) if path.is_file()] if source.is_dir() else [source]
    texts = [path for path in files if path == source or path.suffix.lower() in (".xml", ".json")]
    contents = {path: _content(path, findings) for path in texts if path == source or not path.name.startswith(".")}
    each = {path: content for path, content in contents.items() if isinstance(content, xml.Element)}
    drawn = mask_files(source, images) if source.is_dir() else []
    whole = contents.get(source)
    if not each and not drawn and not isinstance(whole, dict):
        findings.refuse(source)
        coco = [f"COCO JSON; give {path} itself" for path, content in contents.items() if content is not None]
        raise ConfigError(f"{source} is, or holds, {coco[0] if coco else 'no known annotations'}; {_KNOWN}")
    if each and drawn:
        raise ConfigError(
            f"{source} holds {len(drawn)} masks or pictures, and {len(each)} files of Pascal VOC; give a folder of one "
            "kind, or the same folder as --images"
        )
    if drawn and not choices.labels:
        raise ConfigError(f"{source} is a folder of masks, which name no labels; give them with --labels")
    index = PictureIndex(images, findings, clip=choices.clip, masks={path.resolve() for path in drawn})
    for path in [path for path in contents if path not in each and path != source and index.knows(path.stem)]:
        if choices.unmarked_good:
            findings.fault(
                "a file named like a picture is not an annotation; is that picture good? Remove the file", path.name
            )
    form = "masks" if drawn else "Pascal VOC" if each else "COCO"
    try:
        labels = (
            _coco(whole, index, findings)
            if isinstance(whole, dict)
            else _voc(each, index, findings)
            if each
            else _masks(drawn, choices.labels, index, findings)
        )
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{source}: cannot be read as annotations ({error}); export it again") from None
    index.take_rest(source.name, as_good=choices.unmarked_good)
    wanted = _wanted(choices.labels or tuple(map(composed, labels)), index, findings)
    findings.refuse(source)
    boxes = [box for picture in index.pictures for box in picture.boxes]
    if boxes and max(max(box.right, box.bottom) for box in boxes) <= 1:
        raise ConfigError(
            f"{source}: no box is larger than a pixel: coordinates may be relative; export them in pixels"
        )
    if not boxes:
        told = "".join(f"; {count} {note}" for note, count in findings.notes.items())
        raise ConfigError(f"{source}: no box in {len(index.pictures)} pictures, so nothing to train on{told}")
    return form, MarkedSet(wanted, tuple(index.pictures))


def _content(path: Path, findings: Findings) -> xml.Element | dict[str, Any] | None:
    """Return what a file of Pascal VOC or COCO holds; None for another one. One that cannot be read is a fault."""
    try:
        raw = path.read_bytes()
        start = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if start == b"<":
            if b"<!ENTITY" in raw or b"<!DOCTYPE" in raw:
                raise ValueError("annotations must not have a document type (DOCTYPE)")
            root = xml.fromstring(raw)
            return root if root.tag == "annotation" else None
        content = json.loads(raw) if start in (b"{", b"[") else None
    except (OSError, ValueError, LookupError, RecursionError, xml.ParseError) as error:
        if path.suffix.lower() in (".xml", ".json", ""):
            findings.fault("a file cannot be read; export it again, or remove it", f"{path} ({first_line(error)})")
        return None
    is_coco = isinstance(content, dict) and all(isinstance(content.get(key), list) for key in ("images", "annotations"))
    return content if is_coco else None


def _wanted(labels: tuple[str, ...], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    for label in dict.fromkeys(composed(box.label) for picture in index.pictures for box in picture.boxes):
        if label not in labels:
            findings.fault("a label is not among those of --labels", label)
    for label in labels:
        if not label.strip() or labels.count(label) > 1:
            findings.fault("a label is empty or occurs twice", repr(label))
        elif others := [other for other in labels if other != label and spelling(other) == spelling(label)]:
            findings.fault(
                "labels differ only in case, dashes or spaces; merge them, or name those to use with --labels",
                f"{label} and {others[0]}",
            )
    return labels


# COCO


def _coco(content: dict[str, Any], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures of a COCO file to `index`; return its labels in the order of their numbers.

    An image without annotations is a good one. An image with a crowd (`iscrowd`) is left out and counted, because its
    objects have no boxes of their own and would be learned as background.
    """
    labels = _unique(content.get("categories", []), "category", findings)
    ordered = sorted(labels.items(), key=lambda one: str(one[0]).zfill(20))
    names = {id: str(category.get("name", "")) for id, category in ordered}
    images = _unique(content["images"], "image", findings)
    boxes: dict[Any, list[MarkedBox]] = defaultdict(list)
    crowds = set()
    for number, entry in enumerate(content["annotations"]):
        where = f"annotation {entry.get('id', number) if isinstance(entry, dict) else number}"
        if not isinstance(entry, dict) or entry.get("image_id") not in images:
            findings.fault("an annotation refers to an image that the file does not list", where)
        elif entry.get("category_id") not in names:
            findings.fault("an annotation has a category that the file does not list", where)
        elif str(entry.get("iscrowd") or 0).casefold() not in ("0", "false"):
            crowds.add(entry["image_id"])
        elif (box := _coco_box(entry, names[entry["category_id"]], where)) is None:
            what = "an annotation has neither a box nor polygons of numbers; write its bbox (pycocotools: mask.toBbox)"
            findings.fault(what, where)
        else:
            boxes[entry["image_id"]].append(box)
            if "score" in entry:
                findings.notes["boxes have a score, like those of a model: has a person confirmed them?"] += 1
    for id, image in images.items():
        path = index.find([str(image.get("file_name", ""))], f"image {id}")
        if path is not None and id in crowds:
            findings.notes["pictures with a crowd (iscrowd), whose objects have no boxes, were left out"] += 1
        elif path is not None:
            stated = (int(image["width"]), int(image["height"])) if image.get("width") and image.get("height") else None
            if size := index.size(path, stated):
                index.add(path, size, boxes[id])
    used = {box.label for each in boxes.values() for box in each}
    above = {str(one.get("supercategory")) for one in labels.values() if one.get("supercategory") != one.get("name")}
    if groups := [name for name in names.values() if name in above - used]:  # as Roboflow writes its project
        findings.notes[f"parent categories without a box were not taken as labels ({list_few(groups)})"] += len(groups)
    return tuple(name for name in names.values() if name not in groups)


def _unique(entries: list[Any], what: str, findings: Findings) -> dict[Any, dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int | str):
            findings.fault("an image or category has no id", f"{what}: {str(entry)[:60]}")
        elif entry["id"] in found:
            findings.fault("two entries have the same id", f"{what} {entry['id']}")
        else:
            found[entry["id"]] = entry
    return found


def _coco_box(entry: dict[str, Any], label: str, where: str) -> MarkedBox | None:
    try:
        if entry.get("bbox"):
            left, top, width, height = map(float, entry["bbox"])
            said = entry.get("attributes")  # CVAT turns a box so; others have lists there, or words
            turn = said.get("rotation") if isinstance(said, dict) else None
            degrees = float(turn) if isinstance(turn, int | float) and turn is not True else 0.0
            return turned(MarkedBox(label, left, top, left + width, top + height, where), degrees)
        rings = [list(map(float, ring)) for ring in entry["segmentation"]]
        xs, ys = zip(*(point for ring in rings for point in zip(ring[::2], ring[1::2], strict=True)), strict=True)
        return MarkedBox(label, min(xs), min(ys), max(xs), max(ys), where)
    except (KeyError, TypeError, ValueError):
        return None


# Pascal VOC


def _voc(contents: Mapping[Path, xml.Element], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures of files to `index`; return their labels, sorted. A file without objects is of a good picture.

    A picture is called as its file says, else as that itself is.
    """
    labels: set[str] = set()
    for path, root in contents.items():
        picture = index.find(filter(None, (root.findtext("filename", ""), path.stem)), path.name)
        try:
            width, height = (int(float(root.findtext(f"size/{side}") or 0)) for side in ("width", "height"))
        except (OverflowError, ValueError):
            width = height = 0
        if picture is None or not (size := index.size(picture, (width, height) if width and height else None)):
            continue
        boxes = []
        for number, one in enumerate(root.iter("object"), 1):
            where = f"{path.name} object {number}"
            if (box := _voc_box(one, where)) is None or not box.label:
                findings.fault(
                    "an object has no box (bndbox), or no label; draw it as a rectangle, or delete it", where
                )
                continue
            boxes.append(box)
            if one.findtext("difficult", "").strip().casefold() in ("1", "true"):
                findings.notes["objects that are marked as difficult were taken like the others"] += 1
        labels.update(box.label for box in boxes)
        index.add(picture, size, boxes)
    return tuple(sorted(labels))


def _voc_box(one: xml.Element, where: str) -> MarkedBox | None:
    try:
        left, top, right, bottom = (
            float(one.findtext(f"bndbox/{key}", "")) for key in ("xmin", "ymin", "xmax", "ymax")
        )
    except ValueError:
        return None
    turns = (said.findtext("value", "") for said in one.iter("attribute") if said.findtext("name") == "rotation")
    degrees = next((float(turn) for turn in turns if re.fullmatch(r"-?\d+(\.\d*)?", turn)), 0.0)  # CVAT turns so
    return turned(MarkedBox(one.findtext("name", "").strip(), left, top, right, bottom, where), degrees)


# Masks: a picture of numbers beside each picture; each connected region of a number is an object


def mask_files(folder: Path, images: Path) -> list[Path]:
    """Return the masks in `folder`; in the folder of the pictures, if that lies in it, those whose names say so."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in EXTENSIONS and path.is_file()]
    found, inner = [path for path in found if not path.name.startswith(".")], images.resolve()
    if not inner.is_relative_to(folder.resolve()):
        return found
    return [path for path in found if path.stem.endswith(ENDINGS) or not path.resolve().is_relative_to(inner)]


def _masks(masks: Iterable[Path], labels: tuple[str, ...], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures that have one of the masks to `index`; return the labels.

    Of one label all that is not 0 is an object; of several, 1 is the first label, 2 the second, and so on. A mask of
    zeros is a good picture. Pixels that touch at a corner belong together.
    """
    for mask in masks:
        if mask.suffix.lower() not in LOSSLESS:
            findings.fault("a mask is a JPEG, whose values are not exact; save it as PNG", mask.name)
            continue
        stem = mask.with_suffix("")
        plain = [stem.with_name(stem.name.removesuffix(end)) for end in ENDINGS if stem.name.endswith(end)]
        path = index.find([name.as_posix() for name in (*plain, stem)], f"mask {mask.name}", told=False)
        if path is not None and (size := index.size(path)):
            try:
                index.add(path, size, _regions(_values(mask, size), labels, mask, findings))
            except Exception as error:  # Pillow raises errors of many types for damaged files
                findings.fault("a file is not a mask, or cannot be read", f"{mask.name} ({first_line(error)})")
    return labels


def _values(mask: Path, size: tuple[int, int]) -> NDArray[np.int64]:
    """Return the numbers of a mask, (H, W): of a palette the indices. Raises ValueError, and what Pillow raises."""
    with warnings.catch_warnings(action="ignore"), Image.open(mask) as picture:  # Pillow warns of large ones
        if picture.size != size:
            raise ValueError(f"is not as large as its picture, {size[0]} x {size[1]}")
        if picture.mode == "P" and any((picture.getpalette() or [])[:3]):
            raise ValueError("has a palette whose entry 0, the background, is not black; save it in grey, 0 for good")
        if picture.mode not in ("LA", "RGB", "RGBA"):
            return np.asarray(picture).astype(np.int64)
        values = np.asarray(picture.convert("RGBA")).astype(np.int64)
    if (values[..., :3] != values[..., :1]).any() or (values[..., 3] != 255).any():
        raise ValueError("has colours, or is transparent; save it in grey, with a value for each label")
    return values[..., 0]


def _regions(values: NDArray[np.int64], labels: tuple[str, ...], mask: Path, findings: Findings) -> list[MarkedBox]:
    if len(labels) == 1:
        values = (values != 0).astype(np.int64)
    boxes = []
    for value in np.unique(values[values != 0]).tolist():
        if not 0 < value <= len(labels):
            findings.fault(f"a mask has a value without a label ({len(labels)} labels)", f"{mask.name} has {value}")
            continue
        count, _, stats, _ = cv2.connectedComponentsWithStats((values == value).astype(np.uint8), connectivity=8)
        for number in range(1, count):
            left, top, width, height = (int(each) for each in stats[number][:4])
            if (height, width) == values.shape:
                findings.notes["boxes cover a whole picture: is its mask inverted?"] += 1
            where = f"{mask.name} region {number}"
            boxes.append(MarkedBox(labels[value - 1], left, top, left + width, top + height, where))
    return boxes
