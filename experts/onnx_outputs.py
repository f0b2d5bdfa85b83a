"""What the outputs of an ONNX model mean: layouts by name and shape, checked once on its answers to test pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert
from coe.errors import StoreError, first_line
from coe.helpers.preprocessing import Activation, Layout, Outputs
from coe.store.kinds import Image, Unsaid
from experts.findings import Floats
from experts.onnx_forms import CHOSEN, UNNUMBERED

PICTURES = 6
"""The number of test pictures."""
_NEARLY = 1e-3
"""By how much scores in 16 bits may exceed their range."""
_STEP = 1 / 256
"""A step of scores in 8 bits: probabilities of many labels sum to 1 less or more of such steps."""
_SURE = 0.1
"""The only score of a sure answer is nearer to 0 or 1."""
_BESIDE = 0.25
"""By which share of the whole range a classifier's numbers may depend on the pictures beside a picture: those of
models that are quantised while they run differ a little."""
_RELATIVE = 2.0
"""Boxes none of which is larger, in pixels, are shares of the picture."""
_BEYOND = 0.5
"""How far boxes may reach beyond the picture, as shares of it."""
_SOME = 20
"""Fewer different boxes do not tell whether they are shares."""
_WIDEST_STEP, _LEVELS = 0.5, 5
"""In larger steps no score above 0 is one of 8 bits; fewer different numbers tell no step."""
_NEARLY_ALL = 0.9
"""Of the boxes of a grid so many are counted; some offsets may be as large as pixels."""
_MOST_CHOSEN = 1000
"""More boxes end to end are all those of a grid, as EfficientDet gives its 5,000 best with their labels."""
_STRIDES = (4, 8, 16, 32, 64, 128)
"""The pixels of a cell: grids begin with 4, 8 or 16, and end with 32, 64 or 128."""


def pictures(size: int) -> Image:
    """Return test pictures, (PICTURES, 3, S, S) uint8: black, white, grey, noise, large patches, waves of colours."""
    chance = np.random.default_rng(0)
    rows, columns = np.mgrid[0:size, 0:size] / size
    waves = [127.5 + 127.5 * np.sin(7 * rows * (2 + step) + 5 * columns + step) for step in range(3)]
    patches = np.kron(chance.integers(0, 256, (3, 4, 4)), np.ones((1, -(-size // 4), -(-size // 4))))
    flat = [np.full((3, size, size), level) for level in (0, 255, 127)]
    noise = chance.integers(0, 256, (3, size, size))
    return np.stack([*flat, noise, patches[:, :size, :size], np.stack(waves)]).astype(np.uint8)


def decide(
    answers: Mapping[str, Any],
    expert: Expert,
    said: Outputs,
    makers: Sequence[Layout] = (),
    *,
    gives_logits: bool = False,
) -> Outputs:
    """Return which output of an expert's model counts, and what it means.

    `answers` are the outputs for the test pictures, by name; `said` is what the user or the file's record says, and
    `makers` the layouts of boxes that its maker's detectors have, () for any. With `gives_logits`, scores that are no
    probabilities are logits. Raises StoreError, which begins with "it", if nothing fits, and Unsaid where shapes leave
    a choice.
    """
    count = len(expert.labels)
    if said.name and said.name not in answers:
        raise StoreError(f"it has no output '{said.name}'; it has {', '.join(answers)}")
    tables = {name: table for name, table in answers.items() if said.name in ("", name) and _is_table(table)}
    each = {name: table for name, table in tables.items() if len(table) == PICTURES}
    if tables and not each:
        raise StoreError(
            f"it returns {_shapes(tables)} for {PICTURES} pictures, not one row or table for each; export it without "
            "NMS, in the layout (n, labels), or (n, ..., N) of boxes"
        )
    fitting: dict[str, list[Layout]] = {}
    for name, table in each.items():
        if said.layout is not None:
            fitting[name] = [said.layout] * may_fit(table.shape, said.layout, count, name)
        else:
            known = _layouts_of(name, table.shape, expert)
            fitting[name] = [one for one in known if one == "scores" or one in (makers or (one,))]
    fitting = {name: own for name, own in fitting.items() if own}
    if not fitting:
        inside = f" in the layout {said.layout}" if said.layout else ""
        raise StoreError(f"it returns {_shapes(answers)}, which does not fit {count} labels{inside}; {needed(count)}")
    if len(fitting) > 1:
        raise Unsaid({"name": f"several fit: {', '.join(fitting)}"})
    name, (layout, *others) = next(iter(fitting.items()))
    values = each[name]
    if others:
        names = " or ".join((layout, *others))
        raise Unsaid({"layout": f"a table {values.shape} of {count} labels may be {names}"})
    if name.startswith(UNNUMBERED) and not said.layout and "background" not in expert.labels[0].lower():
        raise StoreError(
            "its boxes, scores and labels are separate, as in torchvision, whose first label is the background: give "
            "it first (--labels background,...), or give --layout end2end if there is none"
        )
    if not np.isfinite(values).all():
        raise StoreError("its values are not finite; export it again")
    asked = said.model_copy(update={"name": name, "layout": layout})
    if layout == "scores":
        return _scores(values, asked, expert, gives_logits=gives_logits)
    return _chosen(values, asked, count) if layout == "end2end" else _grid(values, asked, count)


def may_fit(shape: Sequence[int | None], layout: Layout, count: int, name: str = "") -> bool:
    """Tell whether an output of a shape, in which None is an open size, may be in a layout."""
    if layout == "scores":
        return len(shape) == 2 and (shape[1] in (count, None) or (shape[1], count) == (1, 2))
    if layout in ("yolov8", "corners"):
        return len(shape) == 3 and _axis_of(shape, count, name) is not None
    return len(shape) == 3 and shape[2] in (5 + count if layout == "yolov5" else 6, None)


def needed(count: int) -> str:
    """Return which shapes fit a number of labels, in words."""
    grids = f"(n, {4 + count}, N) or (n, N, {5 + count})"
    return f"{count} labels need (n, {count}), {grids}, or (n, N, 6) end to end, in one output"


def probabilities(values: torch.Tensor, activation: Activation, count: int) -> torch.Tensor:
    """Return (n, labels) probabilities of an output of the layout scores."""
    if activation == "softmax":
        return values.softmax(dim=1)
    shares = values.sigmoid() if activation == "sigmoid" else values
    return torch.cat((1 - shares, shares), dim=1) if (shares.shape[1], count) == (1, 2) else shares


def candidates(values: Floats, means: Outputs, expert: Expert) -> Floats:
    """Return a detector's output as candidates, (n, 4 + labels, N); raises StoreError for labels that there are not."""
    count = len(expert.labels)
    if means.layout == "end2end":
        boxes, scores = values[:, :, :4].transpose(0, 2, 1), _spread(values, count)
        if not means.shares and _are_relative(values[scores.any(axis=1)]):
            raise StoreError("its boxes are shares of the picture; export it with boxes in pixels of the input")
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
        height, width = _sides_of(expert)
        boxes = boxes * np.array([width, height] * 2, np.float32)[:, None]
    return np.concatenate((boxes, scores[:, :count]), axis=1).astype(np.float32, copy=False)


def are_chosen(values: Floats, means: Outputs, expert: Expert) -> bool:
    """Tell whether boxes are those that the model itself keeps, so that all count however much they overlap.

    Those of DETR and its kin are, which ask for each object once: they are no grid, and each lies in a row, or comes
    apart from its scores.
    """
    if means.layout in ("end2end", "yolov5"):
        return means.layout == "end2end" and values.shape[1] <= _MOST_CHOSEN
    axis = _axis_of(values.shape, len(expert.labels), means.name)
    rows = values.shape[1 if axis == 2 else 2]
    return rows <= _MOST_CHOSEN and (axis == 2 or "+" in means.name) and not _is_grid(rows, _sides_of(expert))


# Which layouts a shape leaves


def _layouts_of(name: str, shape: Sequence[int], expert: Expert) -> list[Layout]:
    """Return the layouts that an output of a name and a shape may be in."""
    if name.startswith((CHOSEN, UNNUMBERED)):
        return ["end2end"]
    # DETR and its kin call centres and sizes `pred_boxes`; a table of YOLOv5 has a row for each cell of its grids.
    out = {"corners"} if name.partition("+")[0] == "pred_boxes" else set()
    out |= set() if _is_grid(shape[1], _sides_of(expert)) else {"yolov5"}
    return [one for one in get_args(Layout) if one not in out and may_fit(shape, one, len(expert.labels), name)]


def _axis_of(shape: Sequence[int | None], count: int, name: str) -> int | None:
    """Return the axis of (n, 4 + labels, N) or (n, N, 4 + labels) that holds a box; None if neither fits.

    A number of "no object" may stand behind those of the labels where boxes and scores came apart and were joined.
    """
    sizes = [(axis, size) for size in ((4 + count, 5 + count) if "+" in name else (4 + count,)) for axis in (1, 2)]
    return next((axis for axis, size in sizes if shape[axis] in (size, None)), None)


def _sides_of(expert: Expert) -> tuple[int, int]:
    """Return the height and width in pixels of what an expert sees."""
    return (expert.preprocessing and expert.preprocessing.sides) or (expert.input_size, expert.input_size)


def _is_grid(rows: int, sides: tuple[int, int]) -> bool:
    """Tell whether a table has a row for each cell of grids of the input whose cells double, or three rows."""
    cells = [math.prod(-(-side // stride) for side in sides) for stride in _STRIDES]
    return any(rows in (sum(cells[first:last]), 3 * sum(cells[first:last])) for first in range(3) for last in (4, 5, 6))


def _parted(values: NDArray[Any], means: Outputs, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return boxes (n, 4, N) and scores (n, scores, N) of a grid."""
    axis = 2 if means.layout == "yolov5" else _axis_of(values.shape, count, means.name)
    columns = values.transpose(0, 2, 1) if axis == 2 else values
    return columns[:, :4], columns[:, 4:]


def _spread(values: Floats, count: int) -> Floats:
    """Return the scores of boxes end to end, (n, labels, N)."""
    scores, numbers = values[:, :, 4], values[:, :, 5]
    present = _are_boxes(scores)
    if not _are_numbers(numbers[present], count):
        raise StoreError(f"its boxes have labels beyond its {count}; give all its labels")
    if (~present & (numbers > 0) & (numbers < 1)).any():
        raise StoreError("its boxes are not rows of corners, score, label; export it with the label last")
    return np.where((numbers[:, None] == np.arange(count)[:, None]) & present[:, None], scores[:, None], np.float32(0))


# Whether the answers to the test pictures are what a layout says


def _scores(values: NDArray[Any], asked: Outputs, expert: Expert, *, gives_logits: bool) -> Outputs:
    """Return what a classifier's numbers (n, labels) are: rows that sum to 1 are probabilities, others are asked."""
    columns, activation = values.shape[1], asked.activation
    if len(expert.labels) == 1:
        raise StoreError("its single output needs two labels; give both, that of low values first")
    if activation == "softmax" and columns == 1:
        raise StoreError(
            "its single output cannot have a softmax; give --activation sigmoid for a logit, none for a probability"
        )
    answer = float(values.flat[0])
    # Eight bits may make the answers to several pictures equal, but not those of several labels.
    if not np.ptp(values) and (columns > 1 or _SURE < answer < 1 - _SURE):
        raise StoreError(
            f"it gives {answer:.3g} for every picture; was its softmax taken over the pictures of a batch (dim=0), or "
            "a constant exported? Export it again"
        )
    if activation is None and columns > 1 and look_like_probabilities(values):
        activation = "none"
    if activation is None and columns > 1 and gives_logits:
        activation = "softmax"
    if activation is None:
        raise Unsaid({"activation": f"the scores go from {_span(values)}, not summing to 1"})
    if activation == "none" and not _are_shares(values):
        raise StoreError(f"its scores go from {_span(values)}: they are not probabilities")
    return asked.model_copy(update={"activation": activation})


def look_like_probabilities(values: NDArray[Any]) -> bool:
    """Tell whether all rows (n, labels) are probabilities, which 8 bits may have rounded."""
    off = min(0.2, (1 + values.shape[1] / 2) * _STEP) + _NEARLY
    return _are_shares(values) and bool((np.abs(values.sum(axis=1) - 1) <= off).all())


def _grid(values: NDArray[Any], asked: Outputs, count: int) -> Outputs:
    """Return what a table of a grid means, with its unit: pixels, or shares of the picture.

    Raises StoreError, which begins with "its", for answers that cannot be in the layout `asked`, and Unsaid for scores
    that need an activation.
    """
    boxes, scores = _parted(values, asked, count)
    activation = None if asked.activation == "none" else asked.activation
    if activation is None and not _are_shares(scores):
        if asked.activation is None:
            raise Unsaid({"activation": f"the scores go from {_span(scores)}"})
        raise StoreError(f"its scores go from {_span(scores)}, not from 0 to 1")
    levels = np.unique(values)
    if len(levels) >= _LEVELS and (step := float(np.diff(levels).min())) > _WIDEST_STEP:
        raise StoreError(
            f"its boxes and scores share a step of {step:.3g} in 8 bits, too coarse for scores from 0 to 1: nothing "
            "would be found; quantise it without its last Concat (`nodes_to_exclude`), or give it in floats"
        )
    filled = boxes.transpose(0, 2, 1)[boxes.any(axis=1)]
    if not filled.size:
        return asked.model_copy(update={"activation": activation})
    are_corners = asked.layout == "corners"
    if not are_corners and _mostly(filled[:, 2:] < 0):
        raise StoreError("its boxes have sizes below 0")
    if are_corners and float((filled[:, 2:] >= filled[:, :2]).mean()) < _NEARLY_ALL:
        raise StoreError("its boxes do not have their two corners in order")
    shares = bool(np.quantile(np.abs(filled), _NEARLY_ALL) <= 2 * _RELATIVE)
    is_known = len(np.unique(filled, axis=0)) >= _SOME
    least = 0 if are_corners else filled[:, 2:].min()
    if shares and not (is_known and filled.min() >= -_BEYOND and filled.max() <= 1 + _BEYOND and least >= -_NEARLY):
        raise StoreError(
            "its boxes are shares of the picture, or steps of a grid that were not decoded; export it with boxes in "
            "pixels of the input (with YOLOX: --decode_in_inference)"
        )
    return asked.model_copy(update={"activation": activation, "shares": shares})


def _chosen(values: NDArray[Any], asked: Outputs, count: int) -> Outputs:
    """Return what boxes end to end, (n, N, 6), mean, with their unit; raises StoreError for no such boxes."""
    rows = values[_are_boxes(values[:, :, 4])]
    if not _are_shares(rows[:, 4:5]):
        raise StoreError("its scores do not lie between 0 and 1")
    if not _are_numbers(rows[:, 5], count):
        raise StoreError(
            f"its last column does not hold the numbers of {count} labels (torchvision's first is the background)"
        )
    if _mostly(rows[:, 2:4] < rows[:, :2]):
        raise StoreError("its boxes do not have their corners in order")
    shares = _are_relative(rows)
    if shares and len(np.unique(rows[:, :4], axis=0)) < _SOME:
        raise StoreError("its boxes are shares of the picture; export it with boxes in pixels of the input")
    return asked.model_copy(update={"shares": shares})


def _are_relative(rows: NDArray[Any]) -> bool:
    """Tell whether the corners of boxes end to end (N, 6), of which there are some, are shares of the picture."""
    return bool(rows.any() and (np.abs(rows[:, :4]) <= _RELATIVE).all())


def _are_shares(values: NDArray[Any]) -> bool:
    """Tell whether numbers lie between 0 and 1."""
    return bool((values >= -_NEARLY).all() and (values <= 1 + _NEARLY).all())


def _are_numbers(values: NDArray[Any], count: int) -> bool:
    """Tell whether all are numbers of labels."""
    return bool(((values == np.round(values)) & (values >= 0) & (values < count)).all())


def _are_boxes(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which rows end to end hold boxes: models fill up with zeros, or with -1."""
    return ~np.isin(scores, (0, -1))


def _mostly(odd: NDArray[np.bool_]) -> bool:
    """Tell whether half of the values or more are odd: some boxes that do not count may have turned corners."""
    return odd.size > 0 and bool(odd.mean() >= 0.5)


def _is_table(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "fui" and values.ndim in (2, 3)


def _shapes(answers: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}' {tuple(getattr(values, 'shape', ()))}" for name, values in answers.items())


def _span(values: NDArray[Any]) -> str:
    return f"{values.min():.3g} to {values.max():.3g}"


# Whether a model answers each picture by itself, and always in the same way


def answered(path: Path, ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return what a model says of the test pictures; raises StoreError if its open batch takes one picture alone."""
    try:
        return ask()
    except Exception as error:  # onnxruntime's classes of errors have no other common parent
        ask(alone=True)
        raise StoreError(
            f"{path}: its batch is open, but it runs only one picture at a time ({first_line(error):.200}); export it "
            "with a batch of 1, or give it one: `python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name "
            "NAME --input_shape 1,3,HEIGHT,WIDTH OLD NEW`"
        ) from error


def check_steady(path: Path, once: NDArray[Any], again: NDArray[Any], alone: NDArray[Any] | None) -> None:
    """Raise StoreError for answers to the same pictures that differ when they are asked again, or each `alone`."""
    if once.shape != again.shape or not np.array_equal(once, again, equal_nan=True):
        fault, cause, way = "it gives different results for the same picture", "its dropout", ""
    elif alone is not None and (
        once.shape != alone.shape
        or np.abs(np.subtract(once, alone, dtype=np.float64)).max() > _BESIDE * (np.ptp(once) or 1.0)
    ):
        fault, cause = "its result for a picture depends on the other pictures of the batch", "its batch norms"
        way = ", or with a batch of 1"
    else:
        return
    raise StoreError(
        f"{path}: {fault}; was it exported in training mode, with {cause}? Export it after `model.eval()`{way}"
    )
