"""ONNX detectors that give boxes, scores and labels apart, as MMDeploy and torchvision do: given one table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coe.errors import StoreError
from experts.onnx_checks import PASSED, Tensors, graph_of

_WITH_SCORES, _ALONE = 5, 4
"""The numbers of a box: two corners, with its score behind them or without."""
_CARRYING = PASSED | {"Expand", "GatherND"}
_ACROSS = (2, -1)
"""The axis of the columns of a table (n, N, 6)."""


def give_boxes(model: Any) -> bool:
    """Let a model give the table (n, N, 6) of its corners, scores and labels; False if it does not give these apart.

    So are (n, N, 5) and whole numbers (n, N), and (n, N, 4), scores (n, N) and whole numbers (n, N), these also of one
    picture alone, without n. Other outputs, as masks, are left out.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    shapes = {one.name: [size.dim_value for size in one.type.tensor_type.shape.dim] for one in graph.output}
    kinds = {one.name: one.type.tensor_type.elem_type for one in graph.output}
    floats = {name for name, kind in kinds.items() if kind in (TensorProto.FLOAT, TensorProto.FLOAT16)}
    wholes = {name for name, kind in kinds.items() if kind in (TensorProto.INT32, TensorProto.INT64)}
    entries = Tensors(graph).inputs
    is_single = len(entries) == 1 and [axis.dim_value for axis in entries[0].type.tensor_type.shape.dim[:1]] == [1]
    # A classifier of four labels gives (1, 4), or (n, 4), perhaps beside the best label and its score.
    forms = [(3, _WITH_SCORES), (3, _ALONE), *([(2, _ALONE)] if is_single else [])]
    tables = [
        name
        for name in floats
        if (len(shapes[name]), *shapes[name][-1:]) in forms and (len(shapes[name]) == 3 or shapes[name][0] != 1)
    ]
    if len(tables) != 1:
        return False
    (table,) = tables
    rank, width = len(shapes[table]) - 1, shapes[table][-1]
    rows = {name for name, shape in shapes.items() if len(shape) == rank and (rank == 1 or shape[-1] != 1)}
    scores, labels = sorted(rows & floats), sorted(rows & wholes)
    if len(labels) != 1 or len(scores) != (width == _ALONE):
        return False
    joined = "+".join([table, *scores, *labels])
    columns = []
    for name, size in ((table, width), *((name, 1) for name in scores + labels)):
        number, shape, column = (f"{name}/coe/{end}" for end in ("number", "shape", "column"))
        # A 0 keeps the size that is there.
        sizes = [0, 0, size] if rank == 2 else [1, -1, size]
        value = helper.make_tensor("", TensorProto.INT64, [3], sizes)
        graph.node.extend(
            (
                helper.make_node("Cast", [name], [number], to=TensorProto.FLOAT),
                helper.make_node("Constant", [], [shape], value=value),
                helper.make_node("Reshape", [number, shape], [column]),
            )
        )
        columns.append(column)
    graph.node.append(helper.make_node("Concat", columns, [joined], axis=2))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(joined, TensorProto.FLOAT, ["n", "boxes", 6]))
    return True


def check_labels(path: Path, output: str, count: int, measured: Callable[[Sequence[str]], Mapping[str, Any]]) -> None:
    """Raise StoreError if a model, whose `output` is a table of boxes, may give other labels than the first `count`.

    The operators of the last column tell, as no test picture need show the last label; where they do not, nobody knows.
    The model was opened before; `measured` gives tensors inside of it.
    """
    tensors = Tensors(graph_of(path))
    least, waiting, is_column = [0], [output], False
    sizes: list[str] = []
    while waiting:
        name = waiting.pop()
        node, numbers = tensors.makers.get(name), tensors.numbers(name)
        if numbers is not None:
            least += [int(numbers.max(initial=0)) + 1] if is_column else []
        elif node is None:
            continue
        elif node.op_type == "Concat":
            is_table = node.attribute[0].i in _ACROSS
            is_column |= is_table
            waiting += node.input[-1:] if is_table else node.input
        elif node.op_type in ("Mod", "Range"):
            sizes.append(node.input[1])
        # A fixed place is one of several columns, whose others may be no labels.
        elif node.op_type in _CARRYING and (node.op_type != "Gather" or tensors.numbers(node.input[1]) is None):
            waiting.append(node.input[0])
    known = {name: tensors.numbers(name) for name in sizes}
    known.update(measured(unknown) if (unknown := [name for name in known if known[name] is None]) else {})
    if (most := max(least + [int(np.max(value)) for value in known.values() if value is not None])) > count:
        raise StoreError(
            f"{path}: it gives boxes of {most} labels, and it has {count}; give all in their order (torchvision's "
            "first is the background)"
        )
