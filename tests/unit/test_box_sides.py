"""Means over channels in the head of a detector: computed along the last axis, they are what they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from coe.prepare.box_sides import beside_each_other
from coe.runtime.onnx_network import open_session

PLACES, CANDIDATES = 16, 30


def head(
    *, axis: int = 1, conv: dict[str, Any] | None = None, outputs: int = 1, bias: bool = False, opset: int = 17
) -> onnx.ModelProto:
    """Return the head of a detector as ultralytics' networks have it: sides (n, 4, a) of numbers (n, 4 * 16, a)."""
    weight = np.arange(outputs * PLACES, dtype=np.float32).reshape(outputs, PLACES, 1, 1)
    constants = {"weight": weight, "bias": np.ones(outputs, np.float32), "split": np.array([-1, 4, PLACES, CANDIDATES])}
    nodes = [
        helper.make_node("Reshape", ["numbers", "split"], ["sides"]),
        helper.make_node("Transpose", ["sides"], ["places"], perm=[0, 2, 1, 3]),
        helper.make_node("Softmax", ["places"], ["shares"], axis=axis),
        helper.make_node("Conv", ["shares", "weight", *(["bias"] if bias else [])], ["means"], **(conv or {})),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["n", 4 * PLACES, CANDIDATES])],
        [helper.make_tensor_value_info("means", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def operators(model: onnx.ModelProto) -> Sequence[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("axis", [1, -3])
def test_means_over_channels_are_the_same_along_the_last_axis(axis: int) -> None:
    before = head(axis=axis)
    after = beside_each_other(before)
    assert operators(after) == ["Reshape", "Transpose", "Transpose", "Softmax", "MatMul", "Transpose"]
    numbers = np.random.default_rng(0).normal(0, 4, (3, 4 * PLACES, CANDIDATES)).astype(np.float32)
    expected, seen = (
        open_session(model.SerializeToString(), 1).run(None, {"numbers": numbers})[0] for model in (before, after)
    )
    assert expected.shape == seen.shape == (3, 1, 4, CANDIDATES)
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    assert beside_each_other(after) == after


def test_a_softmax_that_others_read_stays() -> None:
    model = head()
    model.graph.output.append(helper.make_tensor_value_info("shares", TensorProto.FLOAT, None))
    assert operators(beside_each_other(model)).count("Softmax") == 2


@pytest.mark.parametrize(
    "model",
    [
        head(axis=2),
        head(axis=-1),
        head(outputs=2),
        head(bias=True),
        head(conv={"strides": [1, 2]}),
        head(conv={"pads": [0, 1, 0, 1]}),
        head(opset=12),
    ],
    ids=["other axis", "last axis", "two sums", "bias", "stride", "padding", "old softmax"],
)
def test_other_heads_stay_as_they_are(model: onnx.ModelProto) -> None:
    assert beside_each_other(model) == model
