"""Detectors' layouts by name: which shapes each has, and what its numbers mean, in answers to the test pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert
from coe.errors import StoreError
from coe.helpers.preprocessing import Layout, Outputs
from coe.store.kinds import Unsaid
from experts.findings import Floats
from experts.onnx_forms import CHOSEN, UNNUMBERED

NEARLY = 1e-3
"""By how much scores in 16 bits may exceed their range."""
_RAW_BOXES = (
    "its boxes are shares of the picture, or steps of a grid that were not decoded; export it with boxes in pixels of "
    "the input (with YOLOX: --decode_in_inference)"
)
_RELATIVE = 2.0
"""Boxes none of which is larger, in pixels, are shares of the picture."""
_BEYOND = 0.5
"""How far boxes may reach beyond the picture, as shares of it."""
_SOME = 20
"""Fewer different boxes do not tell whether they are shares."""
_WIDEST_STEP = 0.5
"""In larger steps no score above 0 is one of 8 bits."""
_LEVELS = 5
"""Fewer different numbers tell no step."""
_NEARLY_ALL = 0.9
"""Of the boxes of a grid so many are counted; some offsets may be as large as pixels."""
_MOST_CHOSEN = 1000
"""More boxes end to end are all those of a grid, as EfficientDet gives its 5,000 best with their labels."""
_STRIDES = (4, 8, 16, 32, 64, 128)
"""The pixels of a cell: grids begin with 4, 8 or 16, and end with 32, 64 or 128."""


def axis_of(shape: Sequence[int | None], count: int, *, is_joined: bool) -> int | None:
    """Return the axis of (n, 4 + labels, N) or (n, N, 4 + labels) that holds a box; None if neither fits.

    A number of "no object" may stand behind those of the labels where boxes and scores came apart and were joined.
    """
    sizes = [(axis, size) for size in ((4 + count, 5 + count) if is_joined else (4 + count,)) for axis in (1, 2)]
    return next((axis for axis, size in sizes if shape[axis] in (size, None)), None)


def layouts_of(name: str, shape: Sequence[int], expert: Expert) -> list[Layout]:
    """Return the layouts that a table of a name and shape (n, rows, columns) may be in, for so many labels."""
    count, columns = len(expert.labels), shape[2]
    if name.startswith((CHOSEN, UNNUMBERED)):
        return ["end2end"]
    found: list[Layout] = []
    if axis_of(shape, count, is_joined="+" in name) is not None:
        # DETR and its kin call centres and sizes `pred_boxes`.
        found += ["yolov8"] if name.partition("+")[0] == "pred_boxes" else ["yolov8", "corners"]
    if columns == 5 + count and _is_grid(shape[1], sides_of(expert)):
        found.append("yolov5")
    if columns == 6:
        found.append("end2end")
    return found


def are_chosen(values: Floats, means: Outputs, expert: Expert) -> bool:
    """Tell whether boxes are those that the model itself keeps, so that all count however much they overlap.

    Those of DETR and its kin are, which ask for each object once: they are no grid, and each lies in a row, or comes
    apart from its scores.
    """
    if means.layout in ("end2end", "yolov5"):
        return means.layout == "end2end" and values.shape[1] <= _MOST_CHOSEN
    axis = axis_of(values.shape, len(expert.labels), is_joined="+" in means.name)
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
        boxes, scores = _parted(values, means, count)
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


def _parted(values: NDArray[Any], means: Outputs, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return boxes (n, 4, N) and scores (n, scores, N) of a grid."""
    axis = 2 if means.layout == "yolov5" else axis_of(values.shape, count, is_joined="+" in means.name)
    columns = values.transpose(0, 2, 1) if axis == 2 else values
    return columns[:, :4], columns[:, 4:]


def _spread(values: Floats, count: int) -> Floats:
    """Return the scores of boxes end to end, (n, labels, N)."""
    scores, numbers = values[:, :, 4], values[:, :, 5]
    present = _are_boxes(scores)
    if not ((numbers == np.round(numbers)) & (numbers >= 0) & (numbers < count))[present].all():
        raise StoreError(f"its boxes have labels beyond its {count}; give all its labels")
    return np.where((numbers[:, None] == np.arange(count)[:, None]) & present[:, None], scores[:, None], np.float32(0))


def read(values: NDArray[Any], asked: Outputs, expert: Expert) -> Outputs:
    """Return what a table means that is in the layout `asked`, with its unit: pixels, or shares of the picture.

    Raises StoreError, whose sentence begins with "its", if the answers to the test pictures cannot be in that layout,
    and Unsaid if their scores need an activation that nobody says.
    """
    count = len(expert.labels)
    if asked.layout == "end2end":
        return asked.model_copy(update={"shares": _chosen(values, count)})
    boxes, scores = _parted(values, asked, count)
    activation = asked.activation
    if activation is None and not are_shares(scores):
        raise Unsaid({"activation": f"the scores go from {scores.min():.3g} to {scores.max():.3g}"})
    if activation in (None, "none"):
        activation = None
        if not are_shares(scores):
            raise StoreError(f"its scores go from {scores.min():.3g} to {scores.max():.3g}, not from 0 to 1")
    levels = np.unique(values)
    if len(levels) >= _LEVELS and (step := float(np.diff(levels).min())) > _WIDEST_STEP:
        raise StoreError(
            f"its boxes and scores share a step of {step:.3g} in 8 bits, and scores lie from 0 to 1: nothing would be "
            "found; quantise it without its last Concat (`nodes_to_exclude`), or give it in floats"
        )
    filled = boxes.transpose(0, 2, 1)[boxes.any(axis=1)]
    if not filled.size:
        return asked.model_copy(update={"activation": activation})
    if asked.layout != "corners" and _mostly(filled[:, 2:] < 0):
        raise StoreError("its boxes have sizes below 0")
    if asked.layout == "corners" and float((filled[:, 2:] >= filled[:, :2]).mean()) < _NEARLY_ALL:
        raise StoreError("its boxes do not have two corners in order")
    shares = bool(np.quantile(np.abs(filled), _NEARLY_ALL) <= 2 * _RELATIVE)
    is_known = len(np.unique(filled, axis=0)) >= _SOME
    least = filled[:, 2:].min() if asked.layout != "corners" else 0
    if shares and not (is_known and filled.min() >= -_BEYOND and filled.max() <= 1 + _BEYOND and least >= -NEARLY):
        raise StoreError(_RAW_BOXES)
    return asked.model_copy(update={"activation": activation, "shares": shares})


def _chosen(values: NDArray[Any], count: int) -> bool:
    """Tell whether boxes end to end, (n, N, 6), are shares of the picture; raises StoreError for no such boxes."""
    rows = values[_are_boxes(values[:, :, 4])]
    if not are_shares(rows[:, 4:5]):
        raise StoreError("its scores do not lie between 0 and 1")
    if (rows[:, 5] != np.round(rows[:, 5])).any() or (rows[:, 5] < 0).any() or (rows[:, 5] >= count).any():
        raise StoreError(
            f"its last column does not hold the numbers of {count} labels (torchvision's first is the background)"
        )
    if _mostly(rows[:, 2:4] < rows[:, :2]):
        raise StoreError("its boxes do not have their corners in order")
    is_small = bool(rows.any() and (np.abs(rows[:, :4]) <= _RELATIVE).all())
    if is_small and len(np.unique(rows[:, :4], axis=0)) < _SOME:
        raise StoreError("its boxes are shares of the picture; export it with boxes in pixels of the input")
    return is_small


def are_shares(values: NDArray[Any]) -> bool:
    """Tell whether numbers lie between 0 and 1."""
    return bool((values >= -NEARLY).all() and (values <= 1 + NEARLY).all())


def _are_boxes(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which rows end to end hold boxes: models fill up with zeros, or with -1."""
    return ~np.isin(scores, (0, -1))


def _mostly(odd: NDArray[np.bool_]) -> bool:
    """Tell whether half of the values or more are odd: some boxes that do not count may have turned corners."""
    return odd.size > 0 and bool(odd.mean() >= 0.5)
