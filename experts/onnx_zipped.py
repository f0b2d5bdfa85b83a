"""ONNX classifiers whose probabilities come in a map by label, as Custom Vision and converters of ML.NET write them."""

from __future__ import annotations

import json
from typing import Any

_LABELS = "classes"
"""The key of the metadata under which the labels of the map are kept."""


def give_table(model: Any) -> bool:
    """Let a model give the table of which it makes a map; False if it makes none.

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
