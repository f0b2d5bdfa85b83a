"""What the outputs of an ONNX model mean: read from its answers to test pictures, once a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from coe.errors import StoreError
from coe.preprocessing import Activation, Layout, Outputs
from coe.store.kinds import Image
from experts.findings import Floats

_NEARLY = 1e-3
"""By how much scores in 16 bits may exceed their range."""
_RELATIVE_BOXES = "its boxes are shares of the picture; export it with boxes in pixels of the input"
_RAW_BOXES = (
    "its boxes are shares of the picture, or steps of a grid that were not decoded; export it with boxes in pixels of "
    "the input (with YOLOX: --decode_in_inference)"
)
_STEP = 1 / 256
"""A step of scores in 8 bits: probabilities of many labels sum to 1 less or more of such steps."""
_WHOLES = (100.0, 255.0)
"""What percents, and numbers of 8 bits, sum to; rounding may make it more or less by `_SPREAD` of it."""
_SPREAD = 0.03
_SURE = 0.1
"""The only score of a sure answer is nearer to 0 or 1."""
PICTURES = 6
"""The number of test pictures."""
_RELATIVE = 2.0
"""Boxes none of which is larger, in pixels, are shares of the picture."""
_CORNERS = "its boxes are two corners; export it with boxes of centre and size"
_SOME = 20
"""Of so many different boxes, some lie farther from the left upper corner than they are large."""
_NEARLY_ALL = 0.9
"""Of the boxes of a grid so many are counted; some offsets may be as large as pixels."""
_CHOSEN = 3
"""So many different scores that fall from row to row are those of boxes that were chosen, not those of a grid."""


def pictures(size: int) -> Image:
    """Return test pictures, (PICTURES, 3, S, S) uint8: black, white, grey, noise, large patches, waves of colours."""
    chance = np.random.default_rng(0)
    rows, columns = np.mgrid[0:size, 0:size] / size
    waves = [127.5 + 127.5 * np.sin(7 * rows * (2 + step) + 5 * columns + step) for step in range(3)]
    patches = np.kron(chance.integers(0, 256, (3, 4, 4)), np.ones((1, -(-size // 4), -(-size // 4))))
    flat = [np.full((3, size, size), level) for level in (0, 255, 127)]
    noise = chance.integers(0, 256, (3, size, size))
    return np.stack([*flat, noise, patches[:, :size, :size], np.stack(waves)]).astype(np.uint8)


def decide(answers: Mapping[str, Any], count: int, asked: Outputs, stated: Layout | None, *, strict: bool) -> Outputs:
    """Return which output of a model with `count` labels counts, and what it means.

    `answers` are the outputs for the test pictures, by name; `asked` is what the user says, `stated` the layout that
    the file says. Raises StoreError, which begins with "it", if nothing fits, and if two readings do. A classifier
    whose numbers may be logits or not has no activation if it is `strict`, and else a softmax.
    """
    if asked.name and asked.name not in answers:
        raise StoreError(f"it has no output '{asked.name}'; it has {', '.join(answers)}")
    tables = {name: table for name, table in answers.items() if asked.name in ("", name) and _is_table(table)}
    each = {name: table for name, table in tables.items() if len(table) == PICTURES}
    if tables and not each:
        shapes = ", ".join(f"'{name}' {_shape(table)}" for name, table in tables.items())
        raise StoreError(
            f"it returns {shapes} for {PICTURES} pictures, not one row or table for each; export it without what "
            "chooses boxes (NMS) and in the layout (n, labels), or (n, ..., N) of boxes"
        )
    tables = each
    layouts = [asked.layout] if asked.layout else [stated] if stated else get_args(Layout)
    fitting = [
        (name, layout) for name, table in tables.items() for layout in layouts if may_fit(table.shape, layout, count)
    ]
    if not fitting:
        shapes = ", ".join(f"'{name}' {_shape(table)}" for name, table in answers.items())
        said = f" in the layout {layouts[0]}" if len(layouts) == 1 else ""
        raise StoreError(f"it returns {shapes}, which does not fit {count} labels{said}; {needed(count)}")
    faults = {
        (name, layout): _fault(tables[name], layout, count, is_stated=layout == stated) for name, layout in fitting
    }
    sound = [pair for pair in fitting if not faults[pair]]
    if not sound:
        name, layout = fitting[0]
        raise StoreError(f"its output '{name}' is not in the layout {layout}: {faults[name, layout]}")
    if len({name for name, _ in sound}) > 1:
        names = ", ".join(dict.fromkeys(name for name, _ in sound))
        raise StoreError(f"it has several outputs that fit {count} labels ({names}); name one with --output")
    if len(sound) > 1:
        raise StoreError(
            f"its output '{sound[0][0]}' {_shape(tables[sound[0][0]])} may be in the layout "
            f"{' or '.join(layout for _, layout in sound)}; name it with --layout"
        )
    name, layout = sound[0]
    if layout == "scores" and asked.activation == "softmax" and tables[name].shape[1] == 1:
        raise StoreError("its one output gets no softmax; say --activation sigmoid for a logit, none for a probability")
    if strict and layout == "scores":
        _expect_sight(tables[name])
        _expect_no_fixed_order(tables[name])
    activation = (asked.activation or _activation(tables[name], strict=strict)) if layout == "scores" else None
    if strict and layout == "scores" and asked.activation in (None, "none"):
        _expect_no_percents(tables[name])
    return Outputs(name=name, layout=layout, activation=activation)


def needed(count: int) -> str:
    """Return which shapes fit a number of labels, in words."""
    grids = f"(n, {4 + count}, N) or (n, N, {5 + count})"
    return f"{count} labels need (n, {count}), {grids}, or (n, N, 6) end to end, in one output"


def candidates(values: Floats, layout: Layout, count: int) -> Floats:
    """Return a detector's output as candidates, (n, 4 + labels, N); raises StoreError for labels that there are not."""
    if layout == "yolov8":
        return values
    rows = values.transpose(0, 2, 1)
    if layout == "yolov5":
        return np.concatenate((rows[:, :4], rows[:, 5:] * rows[:, 4:5]), axis=1)
    left, top, right, bottom, scores, numbers = (rows[:, column] for column in range(6))
    present = _are_boxes(scores)
    if not ((numbers == np.round(numbers)) & (numbers >= 0) & (numbers < count))[present].all():
        raise StoreError(f"its boxes have labels beyond its {count}; give all its labels")
    spread = np.where((numbers[:, None] == np.arange(count)[:, None]) & present[:, None], scores[:, None], 0)
    places = np.stack(((left + right) / 2, (top + bottom) / 2, right - left, bottom - top), axis=1)
    return np.concatenate((places, spread), axis=1).astype(np.float32)


def probabilities(values: torch.Tensor, activation: Activation, count: int) -> torch.Tensor:
    """Return (n, labels) probabilities of an output of the layout scores."""
    if activation == "softmax":
        return values.softmax(dim=1)
    shares = values.sigmoid() if activation == "sigmoid" else values
    return torch.cat((1 - shares, shares), dim=1) if (shares.shape[1], count) == (1, 2) else shares


def look_like_probabilities(values: NDArray[Any]) -> bool:
    """Tell whether all rows (n, labels) are probabilities, which 8 bits may have rounded."""
    off = min(0.2, (1 + values.shape[1] / 2) * _STEP) + _NEARLY
    return _are_shares(values) and bool((np.abs(values.sum(axis=1) - 1) <= off).all())


def may_fit(shape: Sequence[int | None], layout: Layout, count: int) -> bool:
    """Tell whether an output of a shape, in which None is an open size, may be in a layout."""
    if layout == "scores":
        return len(shape) == 2 and (shape[1] in (count, None) or (shape[1], count) == (1, 2))
    wanted = {"yolov8": (1, 4 + count), "yolov5": (2, 5 + count), "end2end": (2, 6)}
    axis, size = wanted[layout]
    return len(shape) == 3 and shape[axis] in (size, None)


def _activation(values: NDArray[Any], *, strict: bool) -> Activation | None:
    if values.shape[1] == 1:
        return "none" if _are_shares(values) else "sigmoid"
    if look_like_probabilities(values):
        return "none"
    return None if strict and _are_shares(values) else "softmax"


def _expect_no_percents(values: NDArray[Any]) -> None:
    """Raise StoreError for rows of shares of another whole than 1: percents, or numbers of 8 bits.

    Logits may have the same sum for all test pictures, too, which no part shows.
    """
    totals = values.sum(axis=1, dtype=np.float64)
    if values.min() >= 0 and any((np.abs(totals - whole) <= _SPREAD * whole).all() for whole in _WHOLES):
        raise StoreError(
            f"its scores sum to {totals.max():.3g} for each picture, as percents do; export it with probabilities, "
            "which sum to 1, or say with --activation softmax that they are logits"
        )


def _expect_sight(values: NDArray[Any]) -> None:
    """Raise StoreError for one number for all labels and test pictures, unless it is that of a sure answer.

    Eight bits may make the answers to several pictures equal, but not those of several labels.
    """
    answer = float(values.flat[0])
    if not np.ptp(values) and (values.shape[1] > 1 or _SURE < answer < 1 - _SURE):
        raise StoreError(
            f"it answers {answer:.3g} whatever it sees; was its softmax taken over the pictures of a batch (dim=0), or "
            "a constant exported? Export it again"
        )


def _expect_no_fixed_order(values: NDArray[Any]) -> None:
    """Raise StoreError for scores, or the logits of shares, of which one label has the most in each picture.

    So are those of ranks (CORAL): labels differ by constants, and each number says whether the rank is a higher one.
    """
    values = np.asarray(values, np.float64)
    if _are_shares(values) and not look_like_probabilities(values):
        if not (np.abs(values - 0.5) < 0.5 - _NEARLY).all():
            return
        values = np.log(values / (1 - values))
    apart, varied = np.ptp(values - values[:, :1], axis=0), np.ptp(values[:, 0])
    if values.shape[1] > 1 and varied > _NEARLY and apart.max() <= _NEARLY * varied:
        raise StoreError(
            "its scores differ from label to label by the same numbers whatever it sees, as those of ranks do (ordinal "
            "regression, CORAL); export it with a probability for each label"
        )


def _are_shares(values: NDArray[Any]) -> bool:
    return bool((values >= -_NEARLY).all() and (values <= 1 + _NEARLY).all())


def _is_table(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "fui" and values.ndim in (2, 3)


def _fault(values: NDArray[Any], layout: Layout, count: int, *, is_stated: bool) -> str:
    """Return why the answers to the test pictures cannot be in a layout, which the file may state; "" if they can."""
    if not np.isfinite(values).all():
        return "its numbers are not finite"
    if layout == "scores":
        if count == 1:
            return "one number tells nothing apart; give two labels, that of the low numbers first, as ok,defect"
        return ""
    if layout != "end2end":
        return _grid_fault(values if layout == "yolov8" else values.transpose(0, 2, 1), layout, is_stated=is_stated)
    rows = values[_are_boxes(values[:, :, 4])]
    if not _are_shares(rows[:, 4]):
        return "its scores do not lie between 0 and 1"
    if (rows[:, 5] != np.round(rows[:, 5])).any() or (rows[:, 5] < 0).any() or (rows[:, 5] >= count).any():
        return f"its last column does not hold the numbers of {count} labels (torchvision's first is the background)"
    if _mostly(rows[:, 2:4] < rows[:, :2]):
        return "its boxes do not have their corners in order"
    return _RELATIVE_BOXES if _are_relative(rows[:, :4]) else ""


def _grid_fault(rows: NDArray[Any], layout: Layout, *, is_stated: bool) -> str:
    """Return why the boxes of a grid, (n, columns, N), cannot be in a layout; "" if they can."""
    labels = rows[:, 5:] if layout == "yolov5" else rows[:, 4:]
    if not _are_shares(rows[:, 4:]):
        low, high = float(rows[:, 4:].min()), float(rows[:, 4:].max())
        return f"its scores go from {low:g} to {high:g}, not from 0 to 1; export it with the sigmoid inside"
    if _mostly(rows[:, 2:4] < 0):
        return "its boxes have sizes below 0"
    if layout == "yolov5" and rows.size and rows[:, 4].any():
        whole = (labels == np.round(labels)).all(axis=(0, 2)) & labels.any(axis=(0, 2))
        if whole.any() or not labels.any():
            return "its scores of labels are whole numbers"
        if _fall(rows[:, 4]):
            return "its rows are sorted by their scores, so that they are boxes that were chosen already"
    if _are_small(rows[:, :4]):
        return _RAW_BOXES
    # So large are all boxes of small pictures, too, if ultralytics' network has learned little.
    return _CORNERS if not is_stated and _are_corners(rows[:, :4]) else ""


def _are_boxes(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which rows end to end hold boxes: models fill up with zeros, or with -1."""
    return ~np.isin(scores, (0, -1))


def _are_relative(boxes: NDArray[Any]) -> bool:
    return bool(boxes.any() and (np.abs(boxes) <= _RELATIVE).all())


def _are_corners(boxes: NDArray[Any]) -> bool:
    """Tell whether all boxes of a grid, (n, 4, N), have two corners in order: the size of some would be smaller."""
    filled = boxes.transpose(0, 2, 1)[boxes.any(axis=1)]
    return len(np.unique(filled, axis=0)) >= _SOME and bool((filled[:, 2:] >= filled[:, :2]).all())


def _are_small(boxes: NDArray[Any]) -> bool:
    """Tell whether nearly all numbers are too small for pixels: the boxes of a grid lie all over the picture."""
    filled = boxes.transpose(0, 2, 1)[boxes.any(axis=1)]
    return bool(filled.size and np.quantile(np.abs(filled), _NEARLY_ALL) <= 2 * _RELATIVE)


def _fall(scores: NDArray[Any]) -> bool:
    """Tell whether scores, (n, N), fall from row to row in each picture, and do so in one of them several times."""
    steps = np.diff(scores, axis=1)
    return bool((steps <= 0).all() and ((steps < 0).sum(axis=1) >= _CHOSEN).any())


def _mostly(odd: NDArray[np.bool_]) -> bool:
    """Tell whether half of the values or more are odd: some boxes that do not count may have turned corners."""
    return odd.size > 0 and bool(odd.mean() >= 0.5)


def _shape(values: Any) -> str:
    return str(tuple(getattr(values, "shape", ())))
