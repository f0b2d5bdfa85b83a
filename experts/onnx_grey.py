"""ONNX models that take grey pictures, with one channel: given a first layer that makes it of red, green and blue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from coe.errors import StoreError, first_line
from experts.onnx_checks import CHANNELS_LAST, places

NAME = "coe/grey"
"""The name of the layer that is put before the others."""
_COLOURS = "coe/colours"
_SHARES = (0.299, 0.587, 0.114)
"""Of red, green and blue in grey (ITU-R BT.601), as Pillow and OpenCV have them."""


def in_colour(path: Path, folder: Path) -> Path:
    """Return a model file as one that takes three channels, a copy in `folder`; `path` if it takes no grey pictures.

    Raises StoreError if the copy cannot be written.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    try:
        model = onnx.load_model(path)
    except Exception:  # no ONNX model at all: onnxruntime says so
        return path
    graph = model.graph
    weights = {one.name for one in graph.initializer}
    entries = [one for one in graph.input if one.name not in weights]
    floats = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
    kind = entries[0].type.tensor_type.elem_type if len(entries) == 1 else 0
    if kind not in floats or (axis := _grey_axis(entries[0])) is None:
        return path
    grey, shares = entries[0].name, np.array(_SHARES, floats[kind])
    last = axis == CHANNELS_LAST.index(1)
    graph.initializer.append(
        numpy_helper.from_array(shares.reshape((3, 1) if last else (1, 3, 1, 1)), f"{NAME}/shares")
    )
    node = helper.make_node("MatMul" if last else "Conv", [_COLOURS, f"{NAME}/shares"], [grey], name=NAME)
    entries[0].name = _COLOURS
    entries[0].type.tensor_type.shape.dim[axis].dim_value = 3
    graph.node.insert(0, node)
    target = folder / path.name
    try:
        onnx.save_model(model, target)
    except Exception as error:  # the library raises what it likes
        raise StoreError(f"{path}: cannot be given three channels ({first_line(error):.200})") from error
    return target


def _grey_axis(entry: Any) -> int | None:
    """Return where the one channel of an input stands; None if it has another number of channels."""
    shape = [size.dim_value or size.dim_param for size in entry.type.tensor_type.shape.dim]
    if len(shape) != len(CHANNELS_LAST):
        return None
    axis = places(shape).index(1)
    return axis if shape[axis] == 1 else None
