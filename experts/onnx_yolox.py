"""Whether an ONNX detector makes its boxes as YOLOX does, which takes other pixels than its relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experts import onnx_checks, onnx_sides

_PLACED = onnx_checks.PASSED | {"Expand", "ScatterND"}
"""Operators that put numbers together to a table, as torch exports that."""
_STEPS = (8, 16, 32)
"""The pixels between the places of YOLOX's grids."""


def decodes(graph: Any, places: Sequence[int]) -> bool | None:
    """Tell whether a detector gives a box for each place of three grids, whose sides are exponentials times a step.

    `places` are those of the axes of its input. None if it may be so: the number of its boxes is open, and what it
    multiplies by is not known.
    """
    tensors = onnx_checks.Tensors(graph)
    makers, size = tensors.makers, _sizes(tensors.inputs[0])[places.index(2)]
    height, width = onnx_sides.sides_of(graph) or (size, size)
    rows = sum((height // step) * (width // step) for step in _STEPS)
    shapes = {one.name: _sizes(one) for one in graph.output}
    tables = [
        name
        for name, shape in shapes.items()
        if len(shape) == 3 and shape[1] in (0, rows) and shape[2] not in range(1, 6)
    ]
    products = [node for node in _computed(tables, makers) if node.op_type == "Mul"]
    sides: dict[str, list[str]] = {}
    for node in products:
        for one in _computed(node.input, makers):
            if one.op_type == "Exp":
                sides[one.output[0]] = [name for name in node.input if one not in _computed([name], makers)]
    # What others read, too, is no side: a softmax reads the sum.
    read = [name for node in graph.node for name in node.input]
    if len(sides) not in (1, len(_STEPS)) or any(read.count(side) > 1 for side in sides):
        return False
    if any(shapes[name][1] for name in tables):
        return True
    steps = [_numbers(name, tensors) for factors in sides.values() for name in factors]
    return None if None in steps or not steps else {one for few in steps for one in few or ()} == {*_STEPS}


def _sizes(value: Any) -> list[int]:
    """Return the sizes of an input or output, 0 for open ones."""
    return [size.dim_value for size in value.type.tensor_type.shape.dim]


def _computed(names: Sequence[str], makers: Mapping[str, Any]) -> list[Any]:
    """Return the operators that compute the numbers of tensors, behind those that change where numbers stand."""
    found, ahead, seen = [], list(names), set[str]()
    while ahead:
        name = ahead.pop()
        if name not in seen and (node := makers.get(name)) is not None:
            seen.add(name)
            if node.op_type in _PLACED:
                ahead += node.input
            else:
                found.append(node)
    return found


def _numbers(name: str, tensors: onnx_checks.Tensors) -> set[float] | None:
    """Return the different numbers of a tensor that is put together of constants; None if it is computed."""
    if (numbers := tensors.numbers(name)) is not None:
        return {*numbers.ravel().tolist()}
    node = tensors.makers.get(name)
    if node is None or node.op_type not in _PLACED:
        return None
    # The other inputs of such an operator say where its numbers stand.
    parts = [_numbers(one, tensors) for one in (node.input if node.op_type == "Concat" else node.input[:1])]
    return None if None in parts else {one for part in parts for one in part or ()}
