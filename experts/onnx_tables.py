"""ONNX models whose scores, or boxes, scores and labels come in several outputs or another order: made to give a table.

What is what follows from ranks, sizes and types alone; where these leave a choice, the model stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from coe.runtime.onnx_network import open_session
from experts.onnx_checks import CHANNELS_LAST, NUMBERS, Tensors, places

LABELS = "classes"
"""The key of the metadata under which the labels of a map are kept."""
CHOSEN, UNNUMBERED = "chosen:", "torchvision:"
"""What names of tables of corners, scores and labels begin with; those of one picture alone are torchvision's."""
_WITH_SCORES, _ALONE = 5, 4
"""The numbers of a box: two corners, with its score behind them or without."""
_SIDE = 640
"""The side of a picture that a model of open sides is tried with, in pixels."""


def give_boxes(model: Any) -> bool:
    """Let a model give the table (n, N, 6) of its corners, scores and labels; False if it does not give these apart.

    So are (n, N, 5) and whole numbers (n, N), and (n, N, 4), scores (n, N) and whole numbers (n, N), these also of one
    picture alone, without n. Other outputs, such as masks, are left out.
    """
    shapes, floats, wholes = _outputs(model)
    entries = Tensors(model.graph).inputs
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
    # A 0 keeps the size that is there.
    before = [0, 0] if rank == 2 else [1, -1]
    parts = [
        (name, ("Reshape", [*before, size])) for name, size in ((table, width), *((n, 1) for n in scores + labels))
    ]
    joined = "+".join([table, *scores, *labels])
    _join(model, (CHOSEN if rank == 2 else UNNUMBERED) + joined, parts, axis=2)
    return True


def give_chosen(model: Any) -> bool:
    """Let a model give a table (1, N, 6) of corners, scores and labels; False if it does not choose boxes as Paddle.

    Paddle's detectors give label, score and corners of the boxes of all pictures, (N, 6), and how many each has.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    shapes, floats, wholes = _outputs(model)
    tables = [name for name in floats if shapes[name][1:] == [6]]
    counts = [name for name in wholes if len(shapes[name]) == 1]
    entries = Tensors(graph).inputs
    if len(entries) != 1 or (len(tables), len(counts)) != (1, 1):
        return False
    if all(node.op_type != "NonMaxSuppression" for node in graph.node) and _shapes(model).get(tables[0], (1,))[0] == 1:
        return False  # a classifier of six labels, beside its best one
    name = f"{CHOSEN}{tables[0]}"
    turned = helper.make_tensor("", TensorProto.INT64, [6], [2, 3, 4, 5, 1, 0])
    graph.node.append(helper.make_node("Constant", [], [f"{name}/columns"], value=turned))
    graph.node.append(helper.make_node("Gather", [tables[0], f"{name}/columns"], [f"{name}/turned"], axis=1))
    _join(model, name, [(f"{name}/turned", ("Reshape", [1, -1, 6]))], axis=2)
    entries[0].type.tensor_type.shape.dim[0].dim_value = 1
    return True


def give_grids(model: Any) -> bool:
    """Let a model give a grid (n, 4 + scores, N) of boxes and scores that it gives apart; False if it does not.

    So YOLO-NAS, PP-YOLOE without NMS, and DETR answer: (n, N, 4), and (n, N, scores) or (n, scores, N). Shapes are
    those of an answer, as files leave them open. What may be boxes or scores is joined in both ways, and the output
    is asked for. TensorFlow's boxes begin with y, and are left as they are: names or order of axes say so.
    """
    _, floats, _ = _outputs(model)
    if len(Tensors(model.graph).inputs) != 1 or len(floats) < 2:
        return False
    shapes = {name: shape for name, shape in _shapes(model).items() if len(shape) == 3}
    pairs = [
        (boxes, scores, shapes[scores].index(shapes[boxes][1], 1))
        for boxes, scores in permutations((name for name in shapes if name in floats), 2)
        if shapes[boxes][2] == _ALONE and 1 < shapes[boxes][1] in shapes[scores][1:] and "detection_boxes" not in boxes
    ]
    for number, (boxes, scores, at) in enumerate(pairs):
        parts = [
            (part, ("Transpose", [0, 2, 1] if axis == 1 else [0, 1, 2])) for part, axis in ((boxes, 1), (scores, at))
        ]
        _join(model, f"{boxes}+{scores}", parts, axis=1, keep=number > 0)
    return bool(pairs)


def give_table(model: Any) -> bool:
    """Let a model give the table of which it makes a map, as Custom Vision and ML.NET write it; False if it makes none.

    The labels of the map become those that the file says.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    outputs = {one.name for one in graph.output}
    maps = [node for node in graph.node if node.op_type == "ZipMap" and outputs.intersection(node.output)]
    if len(maps) != 1:
        return False
    (table,) = maps[0].input
    texts = [list(one.strings) for one in maps[0].attribute if one.name == "classlabels_strings"]
    labels = [text.decode(errors="replace") for text in texts[0]] if texts else []
    graph.node.remove(maps[0])
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(table, TensorProto.FLOAT, ["n", len(labels) or "labels"]))
    if labels and all(entry.key != LABELS for entry in model.metadata_props):
        model.metadata_props.add(key=LABELS, value=json.dumps(labels))
    return True


def give_rows(model: Any) -> bool:
    """Let a model whose one output has axes of size 1 beside its scores, or no axis of pictures, give rows; else False.

    So end convolutions behind a pooling, (n, labels, 1, 1), and networks behind a `squeeze`, (n,) or (labels,). There
    are as many rows as pictures: what a file says of its output may hold for one picture alone. Beside the one output
    may be maps and answers yes or no, as anomalib gives them.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    kinds = {one.name: one.type.tensor_type for one in graph.output}
    several = {n: kind for n, kind in kinds.items() if kind.elem_type != TensorProto.BOOL and len(kind.shape.dim) != 4}
    name, kind = next(iter((several or kinds).items()))
    sizes = [size.dim_value for size in kind.shape.dim]
    if (
        len(several or kinds) > 1
        or kind.elem_type not in (TensorProto.FLOAT, TensorProto.FLOAT16)
        or not kind.HasField("shape")
        or (len(sizes) != 1 and not (len(sizes) == 4 and sizes[1:].count(1) >= 2))
    ):
        return False
    weights = {one.name for one in graph.initializer}
    pictures = [one.name for one in graph.input if one.name not in weights]
    makers = [node for node in graph.node if name in node.output]
    if len(makers) != 1 or not pictures:
        return False
    inner, taken, first, count, rest, shape = (f"{name}/coe/{number}" for number in range(6))
    for names in (makers[0].output, *(node.input for node in graph.node)):
        names[:] = [inner if one == name else one for one in names]
    graph.node.extend(
        (
            helper.make_node("Shape", pictures[:1], [taken]),
            helper.make_node("Constant", [], [first], value=helper.make_tensor("", TensorProto.INT64, [1], [0])),
            helper.make_node("Gather", [taken, first], [count]),
            helper.make_node("Constant", [], [rest], value=helper.make_tensor("", TensorProto.INT64, [1], [-1])),
            helper.make_node("Concat", [count, rest], [shape], axis=0),
            helper.make_node("Reshape", [inner, shape], [name]),
        )
    )
    next(one for one in graph.output if one.name == name).CopyFrom(
        helper.make_tensor_value_info(name, kind.elem_type, ["n", None])
    )
    return True


def _outputs(model: Any) -> tuple[dict[str, list[int]], set[str], set[str]]:
    """Return the shapes of outputs by name, 0 for open sizes, and the names of floats and of whole numbers."""
    from onnx import TensorProto

    kinds = {one.name: one.type.tensor_type for one in model.graph.output}
    shapes = {name: [size.dim_value for size in kind.shape.dim] for name, kind in kinds.items()}
    floats = {n for n, kind in kinds.items() if kind.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)}
    return shapes, floats, {n for n, kind in kinds.items() if kind.elem_type in (TensorProto.INT32, TensorProto.INT64)}


def _join(
    model: Any, joined: str, parts: Sequence[tuple[str, tuple[str, list[int]]]], *, axis: int, keep: bool = False
) -> None:
    """Let a model give one output of parts side by side, each reshaped or transposed first; others only to `keep`."""
    from onnx import TensorProto, helper

    graph, columns = model.graph, []
    for place, (name, (operator, numbers)) in enumerate(parts):
        number, shape, column = (f"{joined}/coe/{place}/{end}" for end in ("number", "shape", "column"))
        graph.node.append(helper.make_node("Cast", [name], [number], to=TensorProto.FLOAT))
        if operator == "Reshape":
            value = helper.make_tensor("", TensorProto.INT64, [len(numbers)], numbers)
            graph.node.append(helper.make_node("Constant", [], [shape], value=value))
            graph.node.append(helper.make_node("Reshape", [number, shape], [column]))
        else:
            graph.node.append(helper.make_node("Transpose", [number], [column], perm=numbers))
        columns.append(column)
    graph.node.append(helper.make_node("Concat", columns, [joined], axis=axis))
    if not keep:
        del graph.output[:]
    last = 6 if axis == 2 else None
    graph.output.append(helper.make_tensor_value_info(joined, TensorProto.FLOAT, ["n", None, last]))


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what a model answers to one picture, by output; none if it cannot be asked so."""
    try:
        session = open_session(model.SerializeToString(), 1)
        (entry,) = session.get_inputs()
        if places(entry.shape) == CHANNELS_LAST:
            return {}
        sides = [side if isinstance(side, int) else _SIDE for side in entry.shape[2:]]
        answers = session.run(None, {entry.name: np.zeros((1, 3, *sides), NUMBERS[entry.type])})
    except Exception:  # onnxruntime's errors have no other common parent; opening the model says what is wrong
        return {}
    return {one.name: np.shape(answer) for one, answer in zip(session.get_outputs(), answers, strict=True)}
