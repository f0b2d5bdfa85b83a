"""What the outputs of an ONNX model mean: by name and shape, checked on its answers to test pictures, once a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert
from coe.errors import StoreError, first_line
from coe.helpers.preprocessing import Activation, Layout, Outputs
from coe.store.kinds import Image, Unsaid
from experts import onnx_grids
from experts.onnx_forms import UNNUMBERED
from experts.onnx_grids import NEARLY, are_shares

_STEP = 1 / 256
"""A step of scores in 8 bits: probabilities of many labels sum to 1 less or more of such steps."""
_SURE = 0.1
"""The only score of a sure answer is nearer to 0 or 1."""
_BESIDE = 0.25
"""By which share of the whole range a classifier's numbers may depend on the pictures beside a picture."""
PICTURES = 6
"""The number of test pictures."""


def pictures(size: int) -> Image:
    """Return test pictures, (PICTURES, 3, S, S) uint8: black, white, grey, noise, large patches, waves of colours."""
    chance = np.random.default_rng(0)
    rows, columns = np.mgrid[0:size, 0:size] / size
    waves = [127.5 + 127.5 * np.sin(7 * rows * (2 + step) + 5 * columns + step) for step in range(3)]
    patches = np.kron(chance.integers(0, 256, (3, 4, 4)), np.ones((1, -(-size // 4), -(-size // 4))))
    flat = [np.full((3, size, size), level) for level in (0, 255, 127)]
    noise = chance.integers(0, 256, (3, size, size))
    return np.stack([*flat, noise, patches[:, :size, :size], np.stack(waves)]).astype(np.uint8)


def decide(answers: Mapping[str, Any], expert: Expert, said: Outputs, makers: Sequence[Layout] = ()) -> Outputs:
    """Return which output of an expert's model counts, and what it means.

    `answers` are the outputs for the test pictures, by name; `said` is what the user or the file's record says, and
    `makers` the layouts of boxes that its maker's detectors have, () for any. Raises StoreError, which begins with
    "it", if nothing fits, and Unsaid where shapes leave a choice.
    """
    count = len(expert.labels)
    if said.name and said.name not in answers:
        raise StoreError(f"it has no output '{said.name}'; it has {', '.join(answers)}")
    tables = {name: table for name, table in answers.items() if said.name in ("", name) and _is_table(table)}
    each = {name: table for name, table in tables.items() if len(table) == PICTURES}
    if tables and not each:
        shapes = ", ".join(f"'{name}' {_shape(table)}" for name, table in tables.items())
        raise StoreError(
            f"it returns {shapes} for {PICTURES} pictures, not one row or table for each; export it without what "
            "chooses boxes (NMS) and in the layout (n, labels), or (n, ..., N) of boxes"
        )
    fitting: dict[str, list[Layout]] = {}
    for name, table in each.items():
        if said.layout is not None:
            own = [said.layout] * may_fit(table.shape, said.layout, count, name)
        else:
            own = [one for one in layouts_of(name, table.shape, expert) if one == "scores" or one in (makers or (one,))]
        if own:
            fitting[name] = own
    if not fitting:
        shapes = ", ".join(f"'{name}' {_shape(table)}" for name, table in answers.items())
        inside = f" in the layout {said.layout}" if said.layout else ""
        raise StoreError(f"it returns {shapes}, which does not fit {count} labels{inside}; {needed(count)}")
    if len(fitting) > 1:
        raise Unsaid({"name": f"several fit: {', '.join(fitting)}"})
    name, (layout, *others) = next(iter(fitting.items()))
    values = each[name]
    if others:
        names = " or ".join((layout, *others))
        raise Unsaid({"layout": f"a table {_shape(values)} of {count} labels may be {names}"})
    if name.startswith(UNNUMBERED) and not said.layout and "background" not in expert.labels[0].lower():
        raise StoreError(
            "its boxes, scores and labels come apart, as torchvision's do, whose first label is the background: give "
            "it first (--labels background,...), or say --layout end2end if there is none"
        )
    if not np.isfinite(values).all():
        raise StoreError("its numbers are not finite")
    asked = said.model_copy(update={"name": name, "layout": layout})
    return _scores(values, asked, expert) if layout == "scores" else onnx_grids.read(values, asked, expert)


def layouts_of(name: str, shape: Sequence[int], expert: Expert) -> list[Layout]:
    """Return the layouts that an output of a name and a shape may be in."""
    if len(shape) == 2:
        return ["scores"] if may_fit(shape, "scores", len(expert.labels)) else []
    return onnx_grids.layouts_of(name, shape, expert)


def may_fit(shape: Sequence[int | None], layout: Layout, count: int, name: str = "") -> bool:
    """Tell whether an output of a shape, in which None is an open size, may be in a layout."""
    if layout == "scores":
        return len(shape) == 2 and (shape[1] in (count, None) or (shape[1], count) == (1, 2))
    if layout in ("yolov8", "corners"):
        return len(shape) == 3 and onnx_grids.axis_of(shape, count, is_joined="+" in name) is not None
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


def look_like_probabilities(values: NDArray[Any]) -> bool:
    """Tell whether all rows (n, labels) are probabilities, which 8 bits may have rounded."""
    off = min(0.2, (1 + values.shape[1] / 2) * _STEP) + NEARLY
    return are_shares(values) and bool((np.abs(values.sum(axis=1) - 1) <= off).all())


def _scores(values: NDArray[Any], asked: Outputs, expert: Expert) -> Outputs:
    """Return what a classifier's numbers (n, labels) are: rows that sum to 1 are probabilities, others are asked."""
    columns, activation = values.shape[1], asked.activation
    if len(expert.labels) == 1:
        raise StoreError("its one number tells nothing apart; give two labels, that of the low numbers first")
    if activation == "softmax" and columns == 1:
        raise StoreError("its one output gets no softmax; say --activation sigmoid for a logit, none for a probability")
    answer = float(values.flat[0])
    # Eight bits may make the answers to several pictures equal, but not those of several labels.
    if not np.ptp(values) and (columns > 1 or _SURE < answer < 1 - _SURE):
        raise StoreError(
            f"it answers {answer:.3g} whatever it sees; was its softmax taken over the pictures of a batch (dim=0), or "
            "a constant exported? Export it again"
        )
    if activation == "none" and not are_shares(values):
        raise StoreError(f"its scores go from {values.min():.3g} to {values.max():.3g}: they are no probabilities")
    if activation is None and columns > 1 and look_like_probabilities(values):
        activation = "none"
    if activation is None:
        raise Unsaid({"activation": f"the scores go from {values.min():.3g} to {values.max():.3g}, not summing to 1"})
    return asked.model_copy(update={"activation": activation})


def _is_table(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "fui" and values.ndim in (2, 3)


def _shape(values: Any) -> str:
    return str(tuple(getattr(values, "shape", ())))


# Whether answers are fit to be an expert's


def check_steady(path: Path, once: NDArray[Any], again: NDArray[Any]) -> None:
    """Raise StoreError if a model says something else of the same pictures when it is asked again."""
    if once.shape != again.shape or not np.array_equal(once, again, equal_nan=True):
        raise StoreError(
            f"{path}: it answers otherwise each time for the same picture; was it exported as for training, with its "
            "dropout? Export it after `model.eval()`"
        )


def answered(path: Path, ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return what a model says of the test pictures; raises StoreError if its open batch takes one picture alone."""
    try:
        return ask()
    except Exception as error:  # onnxruntime's classes of errors have no other common parent
        ask(alone=True)
        raise StoreError(
            f"{path}: its batch is open, and it runs one picture at a time alone ({first_line(error):.200}); export it "
            "with a batch of 1, or give it one: `python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name "
            "NAME --input_shape 1,3,HEIGHT,WIDTH OLD NEW`"
        ) from error


def check_alone(path: Path, together: NDArray[Any], alone: NDArray[Any]) -> None:
    """Raise StoreError if what a classifier says of a picture depends on the pictures beside it.

    Models that are quantised while they run differ a little; see `_BESIDE`.
    """
    spread = float(np.ptp(together)) or 1.0
    if (
        together.shape != alone.shape
        or float(np.abs(np.subtract(together, alone, dtype=np.float64)).max()) > _BESIDE * spread
    ):
        raise StoreError(
            f"{path}: what it says of a picture depends on the pictures beside it; was it exported as for training, "
            "with its batch norms? Export it after `model.eval()`, or with a batch of 1"
        )
