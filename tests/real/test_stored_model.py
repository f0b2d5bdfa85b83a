"""Models in int8 as blobs hold them: fused, with weights beside them. They say what the quantised model says."""

import functools
import gc

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.blob import Buffers
from coe.runtime.onnx_network import ELSEWHERE, OnnxNetwork, flat, open_session
from coe.store import blob_format, blob_writing, kinds, skeletons
from coe.variants import int8
from coe.variants.fold import network
from coe.variants.int8_trial import divided, fused
from coe.variants.layout import lay_out_model

JOINT = Expert("joint", "narrow", ("ok", "bad", "gone"), 64, "line/joint", variant="int8")
BRIDGE = Expert("bridge", "narrow_boxes", ("bridge", "gap"), 96, "line/bridge", variant="int8")


def images(expert, count):
    """Pictures (3, S, S) of coarse noise."""
    chance, side = np.random.default_rng(1), expert.input_size // 4
    return [chance.integers(0, 256, (3, side, side), np.uint8).repeat(4, 1).repeat(4, 2) for _ in range(count)]


@functools.cache
def quantised(expert, in_float=0):
    """Return a model of random weights in int8, but for some layers; do not change it."""
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, kinds.ModuleKind)
    module = network(kind, expert, skeletons.random_weights(kind, expert, 3))
    quantiser = int8.Quantiser(int8.export(kind, expert, module, images(expert, 3)), images(expert, 8))
    return quantiser.quantised(quantiser.layers[:in_float])


@pytest.mark.parametrize("in_float", [0, 3])
@pytest.mark.parametrize("expert", [JOINT, BRIDGE], ids=["narrow", "narrow_boxes"])
def test_it_says_what_the_quantised_model_says_bit_for_bit(expert, in_float):
    model, beside = divided(fused(quantised(expert, in_float)))
    exact = OnnxNetwork(quantised(expert, in_float).SerializeToString(), 1, "m")
    stored = OnnxNetwork(model, 1, "m", beside)
    for count in (1, 5, 2):
        batch = np.stack(images(expert, count))
        for one, other in zip(flat(exact.run(batch)), flat(stored.run(batch)), strict=True):
            assert torch.equal(one, other)


def test_a_weight_that_the_blob_lacks_is_an_error():
    model, beside = divided(fused(quantised(JOINT)))
    beside.popitem()
    with pytest.raises(StoreError, match="line/joint"):
        OnnxNetwork(model, 1, "line/joint", beside)


@pytest.mark.parametrize("tensors", [{}, {"w": torch.zeros(64)}, {"w": torch.zeros(64, dtype=torch.uint8)}])
def test_a_header_with_other_weights_than_int8_is_refused(tensors):
    """onnxruntime would take the bytes for int8, whatever they are."""
    header = lay_out_model(b"model", tensors, kind="narrow", labels=3, identity=None).header
    if not tensors:
        header = header.model_copy(update={"tensors": ()})
    with pytest.raises(StoreError, match="beside it"):
        blob_format.decode(blob_writing.encode(header), "the blob")


def test_a_session_holds_the_weights_that_it_did_not_pack():
    """What an addition reads is never packed: the session reads it where it lies, also when nobody else holds it."""
    numbers = np.arange(4096, dtype=np.int8).reshape(64, 64)
    plus = numpy_helper.from_array(numbers, "plus")
    plus.ClearField("raw_data")
    plus.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", ELSEWHERE), ("length", str(numbers.nbytes))):
        plus.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "plus"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, (64, 64))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, (64, 64))],
        [plus],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", int8.OPSET)], ir_version=8)
    buffers = Buffers()
    buffer = buffers.take(numbers.nbytes)
    tensor = buffer.tensor(torch.int8, numbers.size, 0).view(64, 64)
    tensor.copy_(torch.from_numpy(numbers))
    session = open_session(model.SerializeToString(), 1, {"plus": tensor})
    del tensor
    gc.collect()
    buffers.give(buffer)
    del buffer
    assert buffers.allocated_bytes == 0  # it is not lent again while the session reads it
    assert np.array_equal(session.run(None, {"x": np.zeros((64, 64), np.int8)})[0], numbers)
