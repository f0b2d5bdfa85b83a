"""ONNX models whose input is not square, or one picture: a first layer takes it of a square, or of a batch of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from experts.onnx_checks import Tensors, places

NAME = "coe/sides"
"""The name of the layer that is put before the others."""
_SQUARE = "coe/square"
_BATCH = "coe/batch"
_SLICE_OPSET = 10
"""Before it a Slice had no inputs."""


def take_batch(model: Any) -> bool:
    """Let a model take a batch of one; False if it takes a batch: torchvision's detectors take pictures (3, H, W)."""
    from onnx import helper, numpy_helper

    graph = model.graph
    entries = Tensors(graph).inputs
    axes = entries[0].type.tensor_type.shape.dim if len(entries) == 1 else ()
    if len(axes) != 3 or {1, 3}.isdisjoint((axes[0].dim_value, axes[2].dim_value)):
        return False
    graph.initializer.append(numpy_helper.from_array(np.array(0), f"{_BATCH}/first"))
    graph.node.insert(0, helper.make_node("Gather", [_BATCH, f"{_BATCH}/first"], [entries[0].name], axis=0))
    entries[0].name = _BATCH
    axes.add(dim_value=1)
    axes.insert(0, axes.pop())
    return True


def take_squares(model: Any) -> bool:
    """Let a model take squares of its longer side; False if it takes squares, or an axis is open."""
    from onnx import helper, numpy_helper

    graph = model.graph
    entries = Tensors(graph).inputs
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    axes = entries[0].type.tensor_type.shape.dim if len(entries) == 1 else ()
    if len(axes) != 4 or opset < _SLICE_OPSET:
        return False
    order = places([axis.dim_value or axis.dim_param for axis in axes])
    at = [order.index(2), order.index(3)]
    sides = [axes[place].dim_value for place in at]
    if sides[0] == sides[1] or not all(sides):
        return False
    for end, numbers in (("from", [0, 0]), ("to", sides), ("axes", at)):
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), f"{NAME}/{end}"))
    ends = [f"{NAME}/{end}" for end in ("from", "to", "axes")]
    graph.node.insert(0, helper.make_node("Slice", [_SQUARE, *ends], [entries[0].name], name=NAME))
    entries[0].name = _SQUARE
    for place in at:
        axes[place].dim_value = max(sides)
    return True


def sides_of(graph: Any) -> tuple[int, int] | None:
    """Return height and width of what a model takes of a square; None for the whole square."""
    numbers = Tensors(graph).numbers(f"{NAME}/to")
    return None if numbers is None else (int(numbers[0]), int(numbers[1]))
