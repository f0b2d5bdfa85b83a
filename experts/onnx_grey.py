"""ONNX models that take grey pictures, with one channel: given a first layer that makes it of red, green and blue."""

from __future__ import annotations

from typing import Any

import numpy as np

from experts.onnx_checks import CHANNELS_LAST, Tensors, places

NAME = "coe/grey"
"""The name of the layer that is put before the others."""
_COLOURS = "coe/colours"
_SHARES = (0.299, 0.587, 0.114)
"""Of red, green and blue in grey (ITU-R BT.601), as Pillow and OpenCV have them."""


def take_colours(model: Any) -> bool:
    """Let a model take three channels; False if it takes no grey pictures."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    entries = Tensors(graph).inputs
    floats = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.UINT8: np.float32}
    kind = entries[0].type.tensor_type.elem_type if len(entries) == 1 else 0
    if kind not in floats or (axis := _grey_axis(entries[0])) is None:
        return False
    grey, shares = entries[0].name, np.array(_SHARES, floats[kind])
    last = axis == CHANNELS_LAST.index(1)
    graph.initializer.append(
        numpy_helper.from_array(shares.reshape((3, 1) if last else (1, 3, 1, 1)), f"{NAME}/shares")
    )
    mixed = "MatMul" if last else "Conv"
    nodes = [helper.make_node(mixed, [_COLOURS, f"{NAME}/shares"], [grey], name=NAME)]
    if kind == TensorProto.UINT8:  # a Cast to bytes cuts off what follows the point
        graph.initializer.append(numpy_helper.from_array(np.float32(0.5), f"{NAME}/half"))
        nodes = [
            helper.make_node("Cast", [_COLOURS], [f"{NAME}/numbers"], to=TensorProto.FLOAT),
            helper.make_node(mixed, [f"{NAME}/numbers", f"{NAME}/shares"], [f"{NAME}/mixed"], name=NAME),
            helper.make_node("Add", [f"{NAME}/mixed", f"{NAME}/half"], [f"{NAME}/rounded"]),
            helper.make_node("Cast", [f"{NAME}/rounded"], [grey], to=TensorProto.UINT8),
        ]
    entries[0].name = _COLOURS
    entries[0].type.tensor_type.shape.dim[axis].dim_value = 3
    for node in reversed(nodes):
        graph.node.insert(0, node)
    return True


def _grey_axis(entry: Any) -> int | None:
    """Return where the one channel of an input stands; None if it has another number of channels."""
    shape = [size.dim_value or size.dim_param for size in entry.type.tensor_type.shape.dim]
    if len(shape) != len(CHANNELS_LAST):
        return None
    axis = places(shape).index(1)
    return axis if shape[axis] == 1 else None
