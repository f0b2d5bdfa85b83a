"""A node of an ONNX graph, replaced by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper


def replaced(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    others: Sequence[onnx.NodeProto],
    constants: Mapping[str, NDArray[Any]],
) -> onnx.ModelProto:
    """Return a model with other nodes in the place of one, new constants, and without what nobody reads any more.

    Nodes stay in the order of computation; inferred shapes are left out.
    """
    nodes = [new for one in model.graph.node for new in (others if one is node else [one])]
    kept, wanted = list[onnx.NodeProto](), {one.name for one in model.graph.output}
    for one in reversed(nodes):
        if wanted & {*one.output}:
            kept.append(one)
            wanted |= {*one.input}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.initializer[:], made.graph.value_info[:]
    made.graph.node.extend(reversed(kept))
    made.graph.initializer.extend(one for one in model.graph.initializer if one.name in wanted)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    return made
