"""ONNX detectors that give boxes, scores and labels apart, as MMDeploy and torchvision do: given one table of them."""

from __future__ import annotations

from typing import Any

from experts.onnx_checks import Tensors

_WITH_SCORES, _ALONE = 5, 4
"""The numbers of a box: two corners, with its score behind them or without."""


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
