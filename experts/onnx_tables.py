"""ONNX classifiers whose scores come in another form than a table, (n, labels): given one more step, or one less."""

from __future__ import annotations

import json
from typing import Any

_LABELS = "classes"
"""The key of the metadata under which the labels of the map are kept."""


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
    if labels and all(entry.key != _LABELS for entry in model.metadata_props):
        model.metadata_props.add(key=_LABELS, value=json.dumps(labels))
    return True


def give_rows(model: Any) -> bool:
    """Let a model whose one output has axes of size 1 beside its scores, or no axis of pictures, give rows; else False.

    So end convolutions behind a pooling, (n, labels, 1, 1), and networks behind a `squeeze`, (n,) or (labels,). There
    are as many rows as pictures: what a file says of its output may hold for one picture alone.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    kind = graph.output[0].type.tensor_type if len(graph.output) == 1 else None
    if kind is None or kind.elem_type not in (TensorProto.FLOAT, TensorProto.FLOAT16) or not kind.HasField("shape"):
        return False
    sizes = [size.dim_value for size in kind.shape.dim]
    if len(sizes) != 1 and not (len(sizes) == 4 and sizes[1:].count(1) >= 2):
        return False
    name, weights = graph.output[0].name, {one.name for one in graph.initializer}
    makers = [node for node in graph.node if name in node.output]
    pictures = [one.name for one in graph.input if one.name not in weights]
    if len(makers) != 1 or not pictures or any(name in node.input for node in graph.node):
        return False
    inner, taken, first, count, rest, shape = (f"{name}/coe/{number}" for number in range(6))
    makers[0].output[list(makers[0].output).index(name)] = inner
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
    graph.output[0].CopyFrom(helper.make_tensor_value_info(name, kind.elem_type, ["n", None]))
    return True
