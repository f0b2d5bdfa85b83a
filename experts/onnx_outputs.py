"""What the outputs of an ONNX model mean: read from its answers to test pictures, once a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert
from coe.errors import StoreError
from coe.helpers.preprocessing import Activation, Layout, Outputs
from coe.store.kinds import Image
from experts import onnx_grids
from experts.onnx_grids import NEARLY, are_shares

_STEP = 1 / 256
"""A step of scores in 8 bits: probabilities of many labels sum to 1 less or more of such steps."""
_WHOLES = (100.0, 255.0)
"""What percents, and numbers of 8 bits, sum to; rounding may make it more or less by `_SPREAD` of it."""
_SPREAD = 0.03
_SURE = 0.1
"""The only score of a sure answer is nearer to 0 or 1."""
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


def decide(
    answers: Mapping[str, Any], expert: Expert, asked: Outputs, stated: Layout | None, *, strict: bool
) -> Outputs:
    """Return which output of an expert's model counts, and what it means.

    `answers` are the outputs for the test pictures, by name; `asked` is what the user says, `stated`
    the layout that the file says. Raises StoreError, which begins with "it", if nothing fits, and if two readings do.
    A classifier whose numbers may be logits or not has no activation if it is `strict`, and else a softmax.
    """
    count = len(expert.labels)
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
    known = asked.layout or stated
    read = {
        (name, layout): _read(tables[name], layout, expert, asked.activation, is_said=layout == known)
        for name, layout in fitting
    }
    sound = {pair: means for pair, means in read.items() if isinstance(means, Outputs)}
    if not sound:
        # Of several faults the first, or one that an option answers.
        name, layout = max(fitting, key=lambda pair: "--layout" in str(read[pair]))
        raise StoreError(f"its output '{name}' is not in the layout {layout}: {read[name, layout]}")
    if len({name for name, _ in sound}) > 1:
        names = ", ".join(dict.fromkeys(name for name, _ in sound))
        raise StoreError(f"it has several outputs that fit {count} labels ({names}); name one with --output")
    (name, layout), means = next(iter(sound.items()))
    if len(sound) > 1:
        raise StoreError(
            f"its output '{name}' {_shape(tables[name])} may be in the layout "
            f"{' or '.join(layout for _, layout in sound)}; name it with --layout"
        )
    means = means.model_copy(update={"name": name})
    if layout != "scores":
        return means
    if asked.activation == "softmax" and tables[name].shape[1] == 1:
        raise StoreError("its one output gets no softmax; say --activation sigmoid for a logit, none for a probability")
    if strict:
        _expect_sight(tables[name])
        _expect_no_fixed_order(tables[name])
        if asked.activation in (None, "none"):
            _expect_no_percents(tables[name])
    activation = asked.activation or _activation(tables[name], strict=strict)
    return means.model_copy(update={"activation": activation})


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


def may_fit(shape: Sequence[int | None], layout: Layout, count: int) -> bool:
    """Tell whether an output of a shape, in which None is an open size, may be in a layout."""
    if layout == "scores":
        return len(shape) == 2 and (shape[1] in (count, None) or (shape[1], count) == (1, 2))
    if layout in ("yolov8", "corners"):
        return len(shape) == 3 and onnx_grids.axis_of(shape, count) is not None
    return len(shape) == 3 and shape[2] in (5 + count if layout == "yolov5" else 6, None)


def _activation(values: NDArray[Any], *, strict: bool) -> Activation | None:
    if values.shape[1] == 1:
        return "none" if are_shares(values) else "sigmoid"
    if look_like_probabilities(values):
        return "none"
    return None if strict and are_shares(values) else "softmax"


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
    if are_shares(values) and not look_like_probabilities(values):
        if not (np.abs(values - 0.5) < 0.5 - NEARLY).all():
            return
        values = np.log(values / (1 - values))
    apart, varied = np.ptp(values - values[:, :1], axis=0), np.ptp(values[:, 0])
    if values.shape[1] > 1 and varied > NEARLY and apart.max() <= NEARLY * varied:
        raise StoreError(
            "its scores differ from label to label by the same numbers whatever it sees, as those of ranks do (ordinal "
            "regression, CORAL); export it with a probability for each label"
        )


def _is_table(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "fui" and values.ndim in (2, 3)


def _read(
    values: NDArray[Any], layout: Layout, expert: Expert, asked: Activation | None, *, is_said: bool
) -> Outputs | str:
    """Return what the answers to the test pictures mean in a layout; or why they cannot be in it."""
    if not np.isfinite(values).all():
        return "its numbers are not finite"
    if layout != "scores":
        return onnx_grids.read(values, layout, expert, asked, is_said=is_said)
    if len(expert.labels) == 1:
        return "one number tells nothing apart; give two labels, that of the low numbers first, as ok,defect"
    return Outputs(layout=layout)


def _shape(values: Any) -> str:
    return str(tuple(getattr(values, "shape", ())))
