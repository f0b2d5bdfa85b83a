"""What the boxes of an ONNX detector mean: centres or corners, pixels or shares, probabilities or logits.

Read from the answers to the test pictures, in a table of boxes for each picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert
from coe.errors import StoreError
from coe.helpers.preprocessing import Activation, Layout, Outputs
from experts.findings import Floats

NEARLY = 1e-3
"""By how much scores in 16 bits may exceed their range."""
_RELATIVE_BOXES = "its boxes are shares of the picture; export it with boxes in pixels of the input"
_RAW_BOXES = (
    "its boxes are shares of the picture, or steps of a grid that were not decoded; export it with boxes in pixels of "
    "the input (with YOLOX: --decode_in_inference)"
)
_CORNERS = "its boxes are two corners; export it with boxes of centre and size"
_NO_CORNERS = "its boxes do not have two corners in order, within the picture"
_EITHER = "its boxes may be centre and size, or two corners; say --layout yolov8 or --layout corners"
_RELATIVE = 2.0
"""Boxes none of which is larger, in pixels, are shares of the picture."""
_BEYOND = 0.5
"""How far boxes may reach beyond the picture, as shares of it."""
_LAST_THIRD = 2 / 3
_SOME = 20
"""Of so many different boxes, some lie farther from the left upper corner than they are large."""
_NEARLY_ALL = 0.9
"""Of the boxes of a grid so many are counted; some offsets may be as large as pixels."""
_MOST_CHOSEN = 1000
"""More boxes end to end are all those of a grid, as EfficientDet gives its 5,000 best with their labels."""
_STRIDES = (4, 8, 16, 32, 64, 128)
"""The pixels of a cell: grids begin with 4, 8 or 16, and end with 32, 64 or 128."""
_NO_GRID = (
    "its {rows} rows are no grid of the input, and may be boxes that were chosen, or hold an angle; say with --layout "
    "what they hold, or export it without what chooses boxes (NMS)"
)
_CHOSEN = 3
"""So many different scores that fall from row to row are those of boxes that were chosen, not those of a grid."""


def axis_of(shape: Sequence[int | None], count: int) -> int | None:
    """Return the axis of (n, 4 + labels, N) or (n, N, 4 + labels) that holds a box; None if neither fits.

    A number of "no object" may stand behind those of the labels.
    """
    sizes = [(axis, size) for size in (4 + count, 5 + count) for axis in (1, 2)]
    return next((axis for axis, size in sizes if shape[axis] in (size, None)), None)


def layout_of(names: Iterable[str]) -> Layout | None:
    """Return the layout that the names of outputs say: DETR and its kin call centres and sizes `pred_boxes`."""
    joined = (name.split("+") for name in names)
    return "yolov8" if any(one[0] == "pred_boxes" and one[-1].endswith("logits") for one in joined) else None


def are_chosen(values: Floats, means: Outputs, expert: Expert) -> bool:
    """Tell whether boxes are those that the model itself keeps, so that all count however much they overlap.

    Those of DETR and its kin are, which ask for each object once: they are no grid, and each lies in a row, or comes
    apart from its scores.
    """
    if means.layout in ("end2end", "yolov5"):
        return means.layout == "end2end" and values.shape[1] <= _MOST_CHOSEN
    axis = axis_of(values.shape, len(expert.labels))
    rows = values.shape[1 if axis == 2 else 2]
    return rows <= _MOST_CHOSEN and (axis == 2 or "+" in means.name) and not _is_grid(rows, sides_of(expert))


def sides_of(expert: Expert) -> tuple[int, int]:
    """Return the height and width in pixels of what an expert sees."""
    return (expert.preprocessing and expert.preprocessing.sides) or (expert.input_size, expert.input_size)


def _is_grid(rows: int, sides: tuple[int, int]) -> bool:
    """Tell whether a table has a row for each cell of grids of the input whose cells double, or three rows."""
    cells = [math.prod(-(-side // stride) for side in sides) for stride in _STRIDES]
    return any(rows in (sum(cells[first:last]), 3 * sum(cells[first:last])) for first in range(3) for last in (4, 5, 6))


def candidates(values: Floats, means: Outputs, expert: Expert) -> Floats:
    """Return a detector's output as candidates, (n, 4 + labels, N); raises StoreError for labels that there are not."""
    count = len(expert.labels)
    if means.layout == "end2end":
        boxes, scores = values[:, :, :4].transpose(0, 2, 1), _spread(values, count)
    else:
        boxes, scores = _parted(values, means.layout, count)
        if means.layout == "yolov5":
            scores = scores[:, 1:] * scores[:, :1]
        if means.activation in ("sigmoid", "softmax"):
            logits = torch.from_numpy(np.ascontiguousarray(scores))
            scores = (logits.sigmoid() if means.activation == "sigmoid" else logits.softmax(dim=1)).numpy()
    if means.layout in ("end2end", "corners"):
        ends, starts = boxes[:, 2:], boxes[:, :2]
        boxes = np.concatenate(((starts + ends) / 2, ends - starts), axis=1)
    if means.shares:
        height, width = sides_of(expert)
        boxes = boxes * np.array([width, height] * 2, np.float32)[:, None]
    return np.concatenate((boxes, scores[:, :count]), axis=1).astype(np.float32, copy=False)


def _parted(values: NDArray[Any], layout: Layout | None, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return boxes (n, 4, N) and scores (n, scores, N) of a grid."""
    columns = _rows(values, layout, count).transpose(0, 2, 1)
    return columns[:, :4], columns[:, 4:]


def _rows(values: NDArray[Any], layout: Layout | None, count: int) -> NDArray[Any]:
    """Return a grid as (n, N, columns)."""
    is_turned = layout != "yolov5" and axis_of(values.shape, count) != 2
    return values.transpose(0, 2, 1) if is_turned else values


def _spread(values: Floats, count: int) -> Floats:
    """Return the scores of boxes end to end, (n, labels, N)."""
    scores, numbers = values[:, :, 4], values[:, :, 5]
    present = _are_boxes(scores)
    if not ((numbers == np.round(numbers)) & (numbers >= 0) & (numbers < count))[present].all():
        raise StoreError(f"its boxes have labels beyond its {count}; give all its labels")
    return np.where((numbers[:, None] == np.arange(count)[:, None]) & present[:, None], scores[:, None], np.float32(0))


def read(
    values: NDArray[Any], layout: Layout, expert: Expert, asked: Activation | None, *, is_said: bool
) -> Outputs | str:
    """Return what the answers to the test pictures mean in a layout, or why they cannot be in it.

    `asked` is the activation that the user says; the layout `is_said` by the user or the file.
    """
    count = len(expert.labels)
    if layout == "end2end":
        return _chosen(values, count)
    rows = _rows(values, layout, count)
    # Rows of DETR are no grid, but none is empty; boxes that were chosen are filled up.
    may_be_chosen = layout == "yolov5" or not rows.any(axis=2).all()
    if not is_said and may_be_chosen and not _is_grid(rows.shape[1], sides_of(expert)):
        return _NO_GRID.format(rows=rows.shape[1])
    return _grid(values, layout, count, expert.input_size, asked, is_said=is_said)


def _chosen(values: NDArray[Any], count: int) -> Outputs | str:
    """Return what boxes end to end mean, (n, N, 6)."""
    rows = values[_are_boxes(values[:, :, 4])]
    if not are_shares(rows[:, 4:5]):
        return "its scores do not lie between 0 and 1"
    if (rows[:, 5] != np.round(rows[:, 5])).any() or (rows[:, 5] < 0).any() or (rows[:, 5] >= count).any():
        return f"its last column does not hold the numbers of {count} labels (torchvision's first is the background)"
    if _mostly(rows[:, 2:4] < rows[:, :2]):
        return "its boxes do not have their corners in order"
    is_small = bool(rows.any() and (np.abs(rows[:, :4]) <= _RELATIVE).all())
    if is_small and len(np.unique(rows[:, :4], axis=0)) < _SOME:
        return _RELATIVE_BOXES
    return Outputs(layout="end2end", shares=is_small)


def _grid(
    values: NDArray[Any], layout: Layout, count: int, size: int, asked: Activation | None, *, is_said: bool
) -> Outputs | str:
    """Return what the boxes of a grid mean, of which few hold an object."""
    boxes, scores = _parted(values, layout, count)
    activation: Activation | None = None
    if layout == "yolov5" or are_shares(scores):
        may_be_chosen = layout == "yolov5" or (count, values.shape[2]) == (2, 6)
        if fault := _unlike_scores(scores, layout, count, may_be_chosen=may_be_chosen):
            return fault
    elif fault := _unlike_logits(scores, count, asked):
        return fault
    else:
        activation = "sigmoid" if scores.shape[1] == count else "softmax"
    filled = boxes.transpose(0, 2, 1)[boxes.any(axis=1)]
    if not filled.size:
        return _NO_CORNERS if layout == "corners" else Outputs(layout=layout, activation=activation)
    if layout != "corners" and _mostly(filled[:, 2:] < 0):
        return "its boxes have sizes below 0"
    shares = bool(np.quantile(np.abs(filled), _NEARLY_ALL) <= 2 * _RELATIVE)
    is_known = len(np.unique(filled, axis=0)) >= _SOME
    if shares and not (is_known and filled.min() >= -_BEYOND and filled.max() <= 1 + _BEYOND):
        return _RAW_BOXES
    if shares and layout != "corners" and filled[:, 2:].min() < -NEARLY:
        return _RAW_BOXES
    # Many centres lie farther from the left upper corner than boxes are large; all that lie in the last third do,
    # unless boxes reach beyond the picture, as those of a small picture do where a network has learned little.
    starts, ends = filled[:, :2], filled[:, 2:]
    ordered = is_known and float((ends >= starts).mean()) >= _NEARLY_ALL
    last, edge = np.quantile(starts, _NEARLY_ALL), np.quantile(ends, _NEARLY_ALL)
    side = 1 if shares else size
    evident = bool(last >= side * _LAST_THIRD and edge <= side * (1 + _BEYOND / 2))
    if layout == "corners" and not (ordered and (evident or is_said)):
        return _EITHER if ordered else _NO_CORNERS
    if layout != "corners" and ordered and not is_said:
        return _CORNERS if evident or layout == "yolov5" else _EITHER
    return Outputs(layout=layout, activation=activation, shares=shares)


def _unlike_scores(scores: NDArray[Any], layout: Layout, count: int, *, may_be_chosen: bool) -> str:
    """Return why the numbers beside boxes, (n, scores, N), are no probabilities; "" if they can be.

    They may be those of boxes end to end where a row has as many columns.
    """
    if not are_shares(scores):
        return _range_of(scores)
    if may_be_chosen:
        labels = scores[:, 1:]
        whole = (labels == np.round(labels)).all(axis=(0, 2)) & (labels.any(axis=(0, 2)) | (not labels.any()))
        if scores[:, 0].any() and whole.any():
            return "its scores of labels are whole numbers"
        if _fall(scores[:, 0]):
            return "its rows are sorted by their scores, so that they are boxes that were chosen already"
    if layout != "yolov5" and scores.shape[1] > count:
        sums = np.abs(scores.sum(axis=1) - 1) <= NEARLY * scores.shape[1]
        return "" if sums.all() and _mostly(scores[:, -1] >= 0.5) else _more_than(scores, count)
    if layout != "yolov5" and _mostly(scores.max(axis=1) > 0.5):
        return "most of its boxes have a label; that of no object stands behind the labels, or is left out"
    return ""


def _unlike_logits(scores: NDArray[Any], count: int, asked: Activation | None) -> str:
    """Return why the numbers beside boxes, (n, scores, N), are no logits; "" if they can be.

    Few boxes hold an object: of most, the logits of all labels are below 0, unless the last is that of no object.
    """
    rest, last = scores[:, :count].max(axis=1), scores[:, -1]
    if scores.shape[1] == count:
        return "" if asked == "sigmoid" or (asked is None and _mostly(rest < 0)) else _range_of(scores)
    is_last = _mostly(last > rest) and (asked == "softmax" or _mostly(last > 0))
    return "" if asked in (None, "softmax") and is_last else _more_than(scores, count)


def _range_of(scores: NDArray[Any]) -> str:
    low, high = float(scores.min()), float(scores.max())
    return f"its scores go from {low:g} to {high:g}, not from 0 to 1; export it with the sigmoid inside"


def _more_than(scores: NDArray[Any], count: int) -> str:
    return (
        f"it has {scores.shape[1]} scores beside each box, and {count} labels; give a label for each score, or say "
        "--activation softmax if they are logits, the last that of no object (DETR)"
    )


def are_shares(values: NDArray[Any]) -> bool:
    """Tell whether numbers lie between 0 and 1."""
    return bool((values >= -NEARLY).all() and (values <= 1 + NEARLY).all())


def _are_boxes(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which rows end to end hold boxes: models fill up with zeros, or with -1."""
    return ~np.isin(scores, (0, -1))


def _fall(scores: NDArray[Any]) -> bool:
    """Tell whether scores, (n, N), fall from row to row in each picture, and do so in one of them several times."""
    steps = np.diff(scores, axis=1)
    return bool((steps <= 0).all() and ((steps < 0).sum(axis=1) >= _CHOSEN).any())


def _mostly(odd: NDArray[np.bool_]) -> bool:
    """Tell whether half of the values or more are odd: some boxes that do not count may have turned corners."""
    return odd.size > 0 and bool(odd.mean() >= 0.5)
