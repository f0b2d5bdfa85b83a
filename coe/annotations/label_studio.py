"""Label Studio's JSON export: tasks with annotations, whose values are in percent of the picture.

A rectangle is turned about its left upper corner, clockwise (https://labelstud.io/tags/rectanglelabels).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from coe.annotations.marked import Findings, MarkedBox, around, around_ellipse
from coe.annotations.picture_index import PictureIndex

_LOCAL = re.compile(r"(?:^|&)d=([^&]*)")
"""The file behind an address such as /data/local-files/?d=photos/R1.png."""
_ENDINGS = "labels"
_NO_BOX = "results without a box (choices, text, relations) were left out"


def read(tasks: list[Any], index: PictureIndex, findings: Findings, annotator: str = "") -> tuple[str, ...]:
    """Add the pictures of an export to `index`; return its labels, sorted, as the export does not list them.

    A cancelled annotation counts as none, a submitted one without results as a good picture. A task that nobody
    submitted is left out and counted. Of several annotations the one that is marked as ground truth counts, or that of
    `annotator` (number or e-mail); else the task is a fault.
    """
    labels: set[str] = set()
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, dict) or not isinstance(task.get("annotations"), list):
            findings.fault("a task has no list of annotations; export as JSON (not JSON-MIN)", f"task {number}")
            continue
        where = f"task {task.get('id', number)}"
        path = index.find(_names(task), where)
        if path is None:
            continue
        submitted = [one for one in task["annotations"] if not one.get("was_cancelled")]
        chosen = _chosen(submitted, annotator)
        if not chosen:
            whose = f"pictures without an annotation of {annotator}" if submitted else "pictures that nobody submitted"
            index.set_aside(path, f"{whose} were left out")
        elif len(chosen) > 1:
            by = ", ".join(_who(one) for one in chosen)
            findings.fault(
                "a picture has several annotations; mark one as ground truth, or name a person with --annotator",
                f"{index.name(path)} ({where}, by {by})",
            )
        elif size := index.size(path):
            boxes = list(_boxes(chosen[0], size, where, findings))
            labels.update(box.label for box in boxes)
            index.add(path, size, boxes, _words(chosen[0]))
    return tuple(sorted(labels))


def _names(task: dict[str, Any]) -> Iterator[str]:
    """Yield the names by which the picture of a task may lie in a folder."""
    data = task.get("data")
    values = data.values() if isinstance(data, dict) else []
    for value in values:
        if isinstance(value, str) and ("/" in value or "." in value):
            local = _LOCAL.search(value.partition("?")[2])
            yield local[1] if local else value
    if task.get("file_upload"):
        yield str(task["file_upload"])


def _who(annotation: dict[str, Any]) -> str:
    by = annotation.get("completed_by")
    return str(by.get("email") or by.get("id")) if isinstance(by, dict) else str(by)


def _chosen(submitted: list[dict[str, Any]], annotator: str) -> list[dict[str, Any]]:
    if annotator:
        return [one for one in submitted if _who(one) == annotator]
    return [one for one in submitted if one.get("ground_truth")] or submitted


def _boxes(annotation: dict[str, Any], size: tuple[int, int], where: str, findings: Findings) -> Iterator[MarkedBox]:
    results = annotation.get("result") or []
    labelled = {one.get("id") for one in results if _labels(one)}
    shown = {(one.get("to_name"), one.get("item_index")) for one in results if _points(one.get("value") or {}, size)}
    if len(shown) > 1:
        findings.fault("a task has shapes in several pictures; export each picture as a task", where)
        return
    for one in results:
        value, place = one.get("value") or {}, f"{where} result {one.get('id', '?')}"
        points = _points(value, size)
        if points is None:
            if str(one.get("type", "")).startswith(("brush", "keypoint", "video")) or "rle" in value:
                findings.fault("a result is no shape with a box; export brushes as masks (PNG)", place)
            else:
                findings.notes[_NO_BOX] += 1
            continue
        stated = (one.get("original_width"), one.get("original_height"))
        if one.get("image_rotation"):
            findings.fault("a picture was turned in Label Studio; save it turned, and draw its boxes there", place)
        elif None not in stated and stated != size:
            said = f"{place}: {stated[0]} x {stated[1]}, the file {size[0]} x {size[1]}"
            findings.fault(
                "a picture is not as large as its annotations say; give the picture they were drawn in", said
            )
        elif not _labels(one):
            if one.get("id") not in labelled:  # a rectangle and its label may be two results with one id
                findings.fault("a shape has no label; give it one or delete it", place)
        else:
            for label in _labels(one):
                yield around(points, label, place)


def _words(annotation: dict[str, Any]) -> list[str]:
    """Return what was said of a picture as a whole: choices, texts, ratings."""
    values = [one.get("value") or {} for one in annotation.get("result") or [] if one.get("type") != "relation"]
    said = [value.get("choices") or value.get("text") or ["?"] for value in values]
    return [str(word) for words in said for word in (words if isinstance(words, list) else [words])]


def _labels(result: dict[str, Any]) -> list[str]:
    value = result.get("value") or {}
    return [str(label) for key, labels in value.items() if key.endswith(_ENDINGS) and labels for label in labels]


def _points(value: dict[str, Any], size: tuple[int, int]) -> list[tuple[float, float]] | None:
    """Return corners of a shape in pixels, None for what has no shape."""
    sx, sy = size[0] / 100, size[1] / 100
    try:
        if "points" in value:
            return [(float(x) * sx, float(y) * sy) for x, y in value["points"]] or None
        degrees = float(value.get("rotation") or 0)
        left, top = float(value["x"]) * sx, float(value["y"]) * sy
        if "radiusX" in value:
            return around_ellipse(left, top, float(value["radiusX"]) * sx, float(value["radiusY"]) * sy, degrees)
        width, height = float(value["width"]) * sx, float(value["height"]) * sy
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)]
        return [(left + x * cos - y * sin, top + x * sin + y * cos) for x, y in corners]
    except (KeyError, TypeError, ValueError):
        return None
