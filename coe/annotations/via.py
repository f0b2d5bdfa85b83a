"""Regions of the VGG Image Annotator, versions 1 and 2, in JSON or CSV (https://www.robots.ox.ac.uk/~vgg/software/via)."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coe.annotations.marked import Findings, MarkedBox, around, around_ellipse
from coe.annotations.picture_index import PictureIndex
from coe.spelling import composed

Entry = Mapping[str, Any]
"""What is known of one picture."""
_TABLE = re.compile(r"#?filename,\w*size,file_attributes,region_count,")


def entries_of(content: Any) -> list[Entry]:
    """Return the entries of pictures in parsed JSON; none if it is no file of this program."""
    entries = content.get("_via_img_metadata", content) if isinstance(content, dict) else {}
    each = [*entries.values()] if isinstance(entries, dict) else []
    return each if all(isinstance(one, dict) and {"filename", "regions"} <= one.keys() for one in each) else []


def entries_of_table(raw: bytes) -> list[Entry]:
    """Return the entries of pictures in a table with a row for each region; none if it is no table of this program.

    Raises KeyError and ValueError for rows that cannot be read.
    """
    text = raw.decode("utf-8-sig", "replace")
    if not _TABLE.match(text):
        return []
    entries: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(text.removeprefix("#").splitlines()):
        attributes = json.loads(row["file_attributes"])
        entry = entries.setdefault(row["filename"], {**row, "file_attributes": attributes, "regions": []})
        if row["region_count"].strip() != "0":
            parts = ("region_shape_attributes", "region_attributes")
            shape, said = (json.loads(row[part]) for part in parts)
            entry["regions"].append({"shape_attributes": shape, "region_attributes": said})
    return [*entries.values()]


def read(
    entries: Sequence[Entry], index: PictureIndex, findings: Findings, named: Sequence[str] = ()
) -> tuple[str, ...]:
    """Add the pictures of `entries` to `index`; return their labels, sorted. A picture without regions is a good one.

    A region's label is the value of the only attribute that regions have, of those whose values are `named`, if any
    are; without an attribute, it is the only one of `named`.
    """
    attributes: dict[str, None] = {}
    labels: set[str] = set()
    for entry in entries:
        name = str(entry["filename"])
        path = index.find([name], "VIA")
        if path is None or not (size := index.size(path)):
            continue
        boxes: list[MarkedBox] = []
        for number, region in enumerate(_values(entry["regions"]), 1):
            where = f"{name} region {number}"
            each = {key: words for key, value in region["region_attributes"].items() if (words := _words(value))}
            said = {key: words for key, words in each.items() if not named or {*words} <= {*named}}
            attributes.update(dict.fromkeys(said))
            words = next(iter((said or each).values()), [*named])
            if (points := _points(region["shape_attributes"])) is None:
                findings.fault("a shape has no box: rectangles, polygons, circles and ellipses have one", where)
            elif not said and len(each or named) != 1:
                findings.fault("a shape has no label; give it one, or name the only one with --labels", where)
            else:
                boxes += [around(points, word, where) for word in words]
        labels.update(box.label for box in boxes)
        index.add(
            path, size, boxes, [word for value in _values(entry.get("file_attributes")) for word in _words(value)]
        )
    if len(attributes) > 1:
        what = "shapes have several attributes; delete all but that of the label, or name the labels with --labels"
        findings.fault(what, ", ".join(attributes))
    return tuple(sorted(labels))


def _values(entries: Any) -> list[Any]:
    """Return what a list holds, or a mapping of numbers, as version 1 has it."""
    return [*entries.values()] if isinstance(entries, dict) else entries or []


def _words(value: Any) -> list[str]:
    """Return what an attribute says: a text, or each box that is ticked."""
    if isinstance(value, dict):
        return [composed(word) for word, is_set in value.items() if is_set]
    return [composed(text)] if (text := "" if value is None else str(value).strip()) else []


def _points(shape: Mapping[str, Any]) -> list[tuple[float, float]] | None:
    """Return corners of a shape in pixels, None for one without a box."""
    try:
        match shape["name"]:
            case "rect":
                left, top, width, height = (float(shape[key]) for key in ("x", "y", "width", "height"))
                return [(left, top), (left + width, top + height)]
            case "polygon":
                sides = ([*map(float, shape[f"all_points_{axis}"])] for axis in "xy")
                return [*zip(*sides, strict=True)] or None
            case "circle":
                x, y, radius = (float(shape[key]) for key in ("cx", "cy", "r"))
                return around_ellipse(x, y, radius, radius, 0)
            case "ellipse":
                x, y, rx, ry = (float(shape[key]) for key in ("cx", "cy", "rx", "ry"))
                return around_ellipse(x, y, rx, ry, math.degrees(shape.get("theta", 0)))
    except (KeyError, TypeError, ValueError):
        return None
    return None
