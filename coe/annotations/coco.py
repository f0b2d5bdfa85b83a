"""COCO JSON: images, categories, and annotations with boxes (x, y, width, height) in pixels.

The format is that of https://cocodataset.org/#format-data.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from coe.annotations.marked import Findings, MarkedBox, around, turned
from coe.annotations.picture_index import PictureIndex
from coe.errors import list_few


def read(content: dict[str, Any], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures of a COCO file to `index`; return its labels in the order of their numbers.

    An image without annotations is a good one. An image with a crowd (`iscrowd`) is left out and counted, because its
    objects have no boxes of their own and would be learned as background.
    """
    labels = _unique(content.get("categories", []), "category", findings)
    names = {
        id: str(category.get("name", ""))
        for id, category in sorted(labels.items(), key=lambda one: str(one[0]).zfill(20))
    }
    images = _unique(content["images"], "image", findings)
    boxes: dict[Any, list[MarkedBox]] = defaultdict(list)
    crowds = set()
    for number, entry in enumerate(content["annotations"]):
        where = f"annotation {entry.get('id', number) if isinstance(entry, dict) else number}"
        if not isinstance(entry, dict) or entry.get("image_id") not in images:
            findings.fault("an annotation is of an image that the file does not list", where)
        elif entry.get("category_id") not in names:
            findings.fault("an annotation has a category that the file does not list", where)
        elif str(entry.get("iscrowd") or 0).casefold() not in ("0", "false"):
            crowds.add(entry["image_id"])
        elif (box := _box(entry, names[entry["category_id"]], where)) is None:
            what = "an annotation has neither a box nor polygons of numbers; write its bbox (pycocotools: mask.toBbox)"
            findings.fault(what, where)
        else:
            boxes[entry["image_id"]].append(box)
            if "score" in entry:
                findings.notes["boxes have a score, as those of a model: has a person confirmed them?"] += 1
    for id, image in images.items():
        path = index.find([str(image.get("file_name", ""))], f"image {id}")
        if path is not None and id in crowds:
            index.set_aside(path, "pictures with a crowd (iscrowd), whose objects have no boxes, were left out")
        elif path is not None:
            stated = (int(image["width"]), int(image["height"])) if image.get("width") and image.get("height") else None
            if size := index.size(path, stated):
                index.add(path, size, boxes[id])
    used = {box.label for each in boxes.values() for box in each}
    above = {str(one.get("supercategory")) for one in labels.values() if one.get("supercategory") != one.get("name")}
    if groups := [name for name in names.values() if name in above - used]:  # as Roboflow writes its project
        findings.notes[f"categories without a box, above others, are no labels ({list_few(groups)})"] += len(groups)
    return tuple(name for name in names.values() if name not in groups)


def _unique(entries: list[Any], what: str, findings: Findings) -> dict[Any, dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int | str):
            findings.fault(
                f"an {what} without an id" if what == "image" else f"a {what} without an id", str(entry)[:60]
            )
        elif entry["id"] in found:
            findings.fault("two entries have the same id", f"{what} {entry['id']}")
        else:
            found[entry["id"]] = entry
    return found


def _box(entry: dict[str, Any], label: str, where: str) -> MarkedBox | None:
    try:
        if entry.get("bbox"):
            left, top, width, height = map(float, entry["bbox"])
            said = entry.get("attributes")  # CVAT turns a box so; others have lists there, or words
            turn = said.get("rotation") if isinstance(said, dict) else None
            degrees = float(turn) if isinstance(turn, int | float) and turn is not True else 0.0
            if degrees and width > 0 < height:
                return around(turned(left, top, left + width, top + height, degrees), label, where)
            return MarkedBox(label, left, top, left + width, top + height, where)
        rings = [list(map(float, ring)) for ring in entry["segmentation"]]
        return around([point for ring in rings for point in zip(ring[::2], ring[1::2], strict=True)], label, where)
    except (KeyError, TypeError, ValueError):
        return None
