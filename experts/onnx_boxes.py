"""ONNX detectors that give boxes, scores and labels apart, or take sizes beside the picture: made as others are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from coe.errors import StoreError
from coe.runtime.onnx_network import open_session
from experts.onnx_checks import CHANNELS_LAST, NUMBERS, PASSED, Tensors, graph_of, places

_WITH_SCORES, _ALONE = 5, 4
"""The numbers of a box: two corners, with its score behind them or without."""
_PICTURE, _RANK, _APART = 4, 3, 2
"""The axes of pictures, and of grids, which are given in two tables."""
_SIDE = 640
"""The side of a picture that a model of open sides is tried with, in pixels."""
_SIZES = re.compile("scale|size|shape")
"""What names say of an input of sizes."""
_BESIDE = "coe/beside"
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


def give_grids(model: Any) -> bool:
    """Let a model give a grid (n, 4 + scores, N) of boxes and scores that it gives apart; False if it does not.

    So YOLO-NAS, PP-YOLOE without NMS, and DETR answer: (n, N, 4), and (n, N, scores) or (n, scores, N). Shapes are
    those of an answer, as files leave them open. What may be boxes or scores is joined in both ways, of which the
    numbers allow one. TensorFlow's boxes begin with y, and are left as they are: its names or order of axes say so.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    entries = Tensors(graph).inputs
    floats = [one for one in graph.output if one.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)]
    if len(entries) != 1 or sum(len(one.type.tensor_type.shape.dim) == _RANK for one in floats) < _APART:
        return False
    shapes = {name: shape for name, shape in _shapes(model).items() if len(shape) == _RANK}
    pairs = [
        (boxes, scores, shapes[scores].index(shapes[boxes][1], 1))
        for boxes, scores in permutations((one.name for one in floats if one.name in shapes), _APART)
        if shapes[boxes][2] == _ALONE and 1 < shapes[boxes][1] in shapes[scores][1:] and "detection_boxes" not in boxes
    ]
    if pairs:
        del graph.output[:]
    for boxes, scores, at in pairs:
        name, columns = f"{boxes}+{scores}", []
        for part, axis in ((boxes, 1), (scores, at)):
            number, column = f"{name}/{part}/number", f"{name}/{part}/column"
            graph.node.append(helper.make_node("Cast", [part], [number], to=TensorProto.FLOAT))
            turn = [0, 2, 1] if axis == 1 else [0, 1, 2]
            graph.node.append(helper.make_node("Transpose", [number], [column], perm=turn))
            columns.append(column)
        graph.node.append(helper.make_node("Concat", columns, [name], axis=1))
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None, None]))
    return bool(pairs)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what a model answers to one picture, by output; none if it cannot be asked so."""
    try:
        session = open_session(model.SerializeToString(), 1)
        (entry,) = session.get_inputs()
        order = places(entry.shape)
        if order == CHANNELS_LAST:
            return {}
        sides = [side if isinstance(side, int) else _SIDE for side in entry.shape[2:]]
        answers = session.run(None, {entry.name: np.zeros((1, 3, *sides), NUMBERS[entry.type])})
    except Exception:  # onnxruntime's errors have no other common parent; opening the model says what is wrong
        return {}
    return {one.name: np.shape(answer) for one, answer in zip(session.get_outputs(), answers, strict=True)}


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


def give_chosen(model: Any) -> bool:
    """Let a model give a table (1, N, 6) of corners, scores and labels; False if it does not choose boxes as Paddle.

    Paddle's detectors give label, score and corners of the boxes of all pictures, (N, 6), and how many each has.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    kinds = {one.name: one.type.tensor_type for one in graph.output}
    tables = [name for name, kind in kinds.items() if [axis.dim_value for axis in kind.shape.dim][1:] == [6]]
    counts = [
        name
        for name, kind in kinds.items()
        if kind.elem_type in (TensorProto.INT32, TensorProto.INT64) and len(kind.shape.dim) == 1
    ]
    entries = Tensors(graph).inputs
    if len(entries) != 1 or (len(tables), len(counts)) != (1, 1):
        return False
    if all(node.op_type != "NonMaxSuppression" for node in graph.node) and _shapes(model).get(tables[0], (1,))[0] == 1:
        return False  # a classifier of six labels, beside its best one
    name = f"{tables[0]}/boxes"
    for end, numbers in (("columns", [2, 3, 4, 5, 1, 0]), ("shape", [1, -1, 6])):
        value = helper.make_tensor("", TensorProto.INT64, [len(numbers)], numbers)
        graph.node.append(helper.make_node("Constant", [], [f"{name}/{end}"], value=value))
    graph.node.append(helper.make_node("Gather", [tables[0], f"{name}/columns"], [f"{name}/turned"], axis=1))
    graph.node.append(helper.make_node("Reshape", [f"{name}/turned", f"{name}/shape"], [name]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "boxes", 6]))
    entries[0].type.tensor_type.shape.dim[0].dim_value = 1
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
