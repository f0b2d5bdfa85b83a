"""ONNX models whose input is no square, grey, one picture, or beside sizes: layers before it take squares."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from experts.onnx_checks import CHANNELS_LAST, Tensors, places

NAME, GREY = "coe/sides", "coe/grey"
"""The names of the layers that are put before the others: of the upper left part, and of grey."""
_SQUARE, _BATCH, _COLOURS, _BESIDE = "coe/square", "coe/batch", "coe/colours", "coe/beside"
_SLICE_OPSET = 10
"""Before it a Slice had no inputs."""
_PICTURE = 4
_SHARES = (0.299, 0.587, 0.114)
"""Of red, green and blue in grey (ITU-R BT.601), as Pillow and OpenCV have them."""
_SIZES = re.compile("scale|size|shape")
"""What names say of an input of sizes."""


def take_sizes(model: Any) -> bool:
    """Let a model take pictures alone that takes sizes beside them, (n, 2); False if it takes no such.

    Paddle's (`im_shape`, `scale_factor`), D-FINE's and RT-DETR's (`orig_target_sizes`) so scale their boxes; they get
    the sides of the square that they see, and 1 as scale: boxes stay in pixels of the input.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    entries = Tensors(graph).inputs
    axes = {one.name: [axis.dim_value or None for axis in one.type.tensor_type.shape.dim] for one in entries}
    pictures = [name for name, sizes in axes.items() if len(sizes) == _PICTURE]
    beside = {name: _SIZES.search(name) for name, sizes in axes.items() if name not in pictures and sizes[1:] == [2]}
    if len(pictures) != 1 or not beside or None in beside.values() or len(beside) + 1 < len(entries):
        return False
    order = places(axes[pictures[0]])
    at = [order.index(2), order.index(3)]
    if len({axes[pictures[0]][place] for place in at}) > 1:
        return False  # which side comes first, each has in its own way
    graph.initializer.append(numpy_helper.from_array(np.array([at]), f"{_BESIDE}/at"))
    graph.initializer.append(numpy_helper.from_array(np.ones((1, 2), np.int64), f"{_BESIDE}/one"))
    nodes = [
        helper.make_node("Shape", pictures, [f"{_BESIDE}/shape"]),
        helper.make_node("Gather", [f"{_BESIDE}/shape", f"{_BESIDE}/at"], [f"{_BESIDE}/sides"]),
    ]
    for one in [one for one in entries if one.name in beside]:
        found = beside[one.name]
        value = f"{_BESIDE}/one" if found and found[0] == "scale" else f"{_BESIDE}/sides"
        nodes.append(helper.make_node("Cast", [value], [one.name], to=one.type.tensor_type.elem_type))
        graph.input.remove(one)
    kept = [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(kept)
    return True


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
        numpy_helper.from_array(shares.reshape((3, 1) if last else (1, 3, 1, 1)), f"{GREY}/shares")
    )
    mixed = "MatMul" if last else "Conv"
    nodes = [helper.make_node(mixed, [_COLOURS, f"{GREY}/shares"], [grey], name=GREY)]
    if kind == TensorProto.UINT8:  # a Cast to bytes cuts off what follows the point
        graph.initializer.append(numpy_helper.from_array(np.float32(0.5), f"{GREY}/half"))
        nodes = [
            helper.make_node("Cast", [_COLOURS], [f"{GREY}/numbers"], to=TensorProto.FLOAT),
            helper.make_node(mixed, [f"{GREY}/numbers", f"{GREY}/shares"], [f"{GREY}/mixed"], name=GREY),
            helper.make_node("Add", [f"{GREY}/mixed", f"{GREY}/half"], [f"{GREY}/rounded"]),
            helper.make_node("Cast", [f"{GREY}/rounded"], [grey], to=TensorProto.UINT8),
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


def sides_of(graph: Any) -> tuple[int, int] | None:
    """Return height and width of what a model takes of a square; None for the whole square."""
    numbers = Tensors(graph).numbers(f"{NAME}/to")
    return None if numbers is None else (int(numbers[0]), int(numbers[1]))
