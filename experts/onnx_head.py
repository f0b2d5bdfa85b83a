"""What an ONNX model does to pixels at its head: one that normalises them itself must not get normalised ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.helpers.preprocessing import NORMALIZATIONS
from experts import onnx_checks

_PASSED = onnx_checks.PASSED | {"Pad", "Resize", "Split", "Upsample"}
"""Operators that change where numbers stand, and no number."""
_REORDERING = {"Concat", "Conv", "Gather", "Slice", "Split"}
"""Operators after which channels may stand in another order."""
_MOST_PASSED = 12
_BRIGHTEST = 2.0
"""What subtracts more, or divides by more, takes pixels from 0 to 255."""
_FAINTEST = 0.1
"""What multiplies by less takes pixels from 0 to 255."""
_LEAST_MEAN = 0.05
"""What subtracts less normalises nothing."""
_WHITEST = 3.0
"""No normalised pixel is larger: a batch norm of three channels with larger means takes pixels from 0 to 255."""
_NEARLY = 0.015
"""By so much the means that people use for ImageNet's pictures differ."""


def normalised(graph: Any) -> dict[str, Any]:
    """Return the fields of `Preprocessing` that the first arithmetic of a model leaves no choice of."""
    tensors = onnx_checks.Tensors(graph)
    names = {one.name for one in tensors.inputs[:1]}
    ordered = True
    for _ in range(_MOST_PASSED):
        readers = [
            node for node in graph.node if names.intersection(node.input) and node.op_type not in onnx_checks.NOT_READ
        ]
        if not readers:
            break
        if not all(node.op_type in _PASSED for node in readers):
            node, *others = readers
            constants = [_constant(name, tensors) for name in node.input if name not in names]
            numbers = [np.asarray(one, np.float64) for one in constants if one is not None]
            is_first = node.input[0] in names or node.op_type in ("Mul", "Add")
            if others or not is_first or not numbers or len(numbers) < len(constants):
                break
            if not _changes_nothing(node.op_type, numbers[0]):
                return _fields(node.op_type, numbers, ordered=ordered)
        ordered = ordered and _REORDERING.isdisjoint(node.op_type for node in readers)
        names = {name for node in readers for name in node.output}
    return {}


def _constant(name: str, tensors: onnx_checks.Tensors) -> NDArray[Any] | None:
    """Return a constant by its name, also one that the model writes in another form first; None for no numbers."""
    while (node := tensors.makers.get(name)) is not None and node.op_type in _PASSED and node.input:
        name = node.input[0]
    values = tensors.numbers(name)
    return values if values is not None and values.size and values.dtype.kind in "fiu" else None


def _changes_nothing(operator: str, first: NDArray[np.float64]) -> bool:
    if operator in ("Sub", "Add"):
        return bool(np.abs(first).max() < _LEAST_MEAN)
    return operator in ("Mul", "Div") and bool((first == 1).all())


def _fields(operator: str, numbers: list[NDArray[np.float64]], *, ordered: bool) -> dict[str, Any]:
    """Return what an operator beside constants says of the pixels that it takes."""
    if operator == "BatchNormalization" and [one.size for one in numbers] == [3] * 4:
        first = numbers[2]
        span = "0..255" if first.max() > _WHITEST and first.min() >= 0 else ""
    elif operator in ("Sub", "Add", "Mul", "Div") and (numbers[0].size in (1, 3) or operator == "Sub"):
        first = numbers[0]  # some subtract the mean of all pictures
        largest = np.abs(first).max()
        is_bytes = largest < _FAINTEST if operator == "Mul" else largest > _BRIGHTEST
        span = "0..255" if is_bytes else "0..1"
    else:
        return {}
    mean, std = NORMALIZATIONS[span] if span else ((), ())
    means = np.abs(first.ravel()) / (255 if np.abs(first).max() > _BRIGHTEST else 1)
    usual = NORMALIZATIONS["imagenet"][0]
    turns = {"rgb": usual, "bgr": usual[::-1]} if ordered and means.size == 3 and operator not in ("Mul", "Div") else {}
    channels = [name for name, one in turns.items() if np.allclose(means, one, atol=_NEARLY)]
    return ({"mean": mean, "std": std} if span else {}) | ({"channels": channels[0]} if channels else {})
