"""What an ONNX model says of the pixels that it takes: by its first operators, and by its metadata as Windows reads it.

A model that normalises pixels itself must not get normalised ones: it would answer, and be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.preprocessing import NORMALIZATIONS, Preprocessing

_RANGES = {"NominalRange_0_255": "0..255", "Normalized_0_1": "0..1", "Normalized_1_1": "-1..1"}
_CHANNELS = {"Rgb8": "rgb", "Bgr8": "bgr"}
_PASSED = {"Cast", "Identity", "Transpose"}
"""Operators that change no number."""
_MOST_PASSED = 8
_BRIGHTEST = 2.0
"""What subtracts more, or divides by more, takes pixels from 0 to 255."""
_LEAST_MEAN = 0.05
"""What subtracts less normalises nothing."""
_FAINTEST = 0.1
"""What multiplies by less takes pixels from 0 to 255."""


def stated_pixels(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the preprocessing that a model, which was opened before, states; empty if it states none."""
    said: dict[str, Any] = {}
    if (channels := metadata.get("Image.BitmapPixelFormat")) in _CHANNELS:
        said["channels"] = _CHANNELS[channels]
    span = _RANGES.get(metadata.get("Image.NominalPixelRange", "")) or _range_by_operators(path)
    if span is not None:
        said["mean"], said["std"] = NORMALIZATIONS[span]
    return {name: value for name, value in said.items() if name in Preprocessing.model_fields}


def _range_by_operators(path: Path) -> str | None:
    """Return the range of the pixels that a model normalises itself; None if it begins otherwise."""
    import onnx

    graph = onnx.load_model(path, load_external_data=False).graph
    constants = {one.name: one for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    name = next((one.name for one in graph.input if one.name not in constants), "")
    for _ in range(_MOST_PASSED):
        readers = [node for node in graph.node if name in node.input]
        if len(readers) != 1:
            return None
        node = readers[0]
        if node.op_type not in _PASSED:
            others = [_numbers(constants.get(other)) for other in node.input if other != name]
            is_first = node.input[0] == name or node.op_type in ("Mul", "Add")
            return _range_of(node.op_type, others) if is_first else None
        name = node.output[0]
    return None


def _range_of(operator: str, others: list[NDArray[Any] | None]) -> str | None:
    """Return the range of what an operator takes beside constants."""
    first = others[0] if others else None
    if operator == "BatchNormalization" and len(others) == 4 and (mean := others[2]) is not None:
        return "0..255" if float(np.abs(mean).max()) > _BRIGHTEST else None
    if first is None or first.size not in (1, 3):
        return None
    largest = float(np.abs(first).max())
    if largest < _LEAST_MEAN if operator in ("Sub", "Add") else largest in (0, 1):  # it changes next to nothing
        return None
    if operator in ("Sub", "Add", "Div"):
        return "0..255" if largest > _BRIGHTEST else "0..1"
    if operator == "Mul":
        return "0..255" if largest < _FAINTEST else "0..1"
    return None


def _numbers(constant: Any) -> NDArray[Any] | None:
    import onnx

    if constant is None or constant.data_location == onnx.TensorProto.EXTERNAL:
        return None
    return np.asarray(onnx.numpy_helper.to_array(constant))
