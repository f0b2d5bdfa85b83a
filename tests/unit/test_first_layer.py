"""The first convolution of an ONNX model reads pixels as they are, and answers what it answered."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_files import model

from coe.helpers.preprocessing import NORMALIZATIONS
from coe.runtime.onnx_network import open_session
from coe.variants.int8 import PIXELS, beside_each_other, on_pixels
from coe.variants.layer_search import MOST_FLOAT, Harm, search

SIZE = 32


def first(shape=(4, 7, 2, 3), normalization="imagenet", *, between="", size=SIZE, more=""):
    """Make a network of one layer: `shape` is outputs, kernel, stride and pixels around the picture."""
    outputs, kernel, stride, around = shape
    mean, deviation = np.float32(NORMALIZATIONS.get(normalization, normalization))[:, :, None, None]
    weight = np.random.default_rng(2).normal(0, 0.1, (outputs, 3, kernel, kernel))
    numbers = {"mean": mean, "deviation": deviation, "weight": weight, "bias": np.arange(outputs, dtype=np.float32)}
    pads = "" if "pads" in more else f", pads=[{around},{around},{around},{around}]"
    nodes = f"""floats = Cast<to=1>(images) scaled = Div(floats, byte) centred = Sub(scaled, mean)
        normalised = Div(centred, deviation) {between}
        answer = Conv<kernel_shape=[{kernel},{kernel}], strides=[{stride},{stride}]{pads}{more}>
            ({"seen" if between else "normalised"}, weight, bias)"""
    made = model(f"uint8[n,3,{size},{size}] images", nodes, f"float[n,{outputs},h,w] answer", byte=255.0, **numbers)
    made.graph.node[-1].name = "first"
    return onnx.shape_inference.infer_shapes(made)


def answer(network, pictures):
    return np.asarray(open_session(network.SerializeToString(), 1).run(None, {"images": pictures})[0])


@pytest.mark.parametrize("normalization", ["imagenet", "0..1", "-1..1"])
@pytest.mark.parametrize(  # as ResNet has it, YOLOv5, two plain ones, and patches
    ("shape", "size"),
    [((4, 7, 2, 3), 32), ((4, 6, 2, 2), 32), ((4, 3, 2, 1), 33), ((4, 3, 1, 1), 32), ((4, 4, 4, 0), 32)],
)
def test_the_rewritten_layer_answers_what_it_answered(shape, size, normalization):
    before = first(shape, normalization, size=size)
    after = on_pixels(before, size)
    onnx.checker.check_model(after.model, full_check=True)
    pictures = np.random.default_rng(1).integers(0, 256, (3, 3, size, size), np.uint8)
    exact, seen = answer(before, pictures), answer(after.model, pictures)
    assert exact.shape == seen.shape
    inside = (slice(None), slice(None), slice(3, -3), slice(3, -3))
    np.testing.assert_allclose(seen[inside], exact[inside], atol=1e-4)
    # Around the picture lies the nearest pixel to 0: off by half a step of a pixel, for each weight that lies there.
    np.testing.assert_allclose(seen, exact, atol=0.05)


def test_pixels_come_to_the_layer_as_they_are():
    after = on_pixels(first(), SIZE)
    assert after.zero == 115  # of 124, 116 and 104
    (reader,) = (node for node in after.model.graph.node if PIXELS in node.output)
    numbers = {one.name: one for one in after.model.graph.initializer}
    scale, zero = (float(numpy_helper.to_array(numbers[name])) for name in reader.input[1:])
    assert (reader.op_type, scale, zero) == ("DequantizeLinear", 1.0, 115.0)
    assert "Div" not in {node.op_type for node in after.model.graph.node}


OTHERS = {
    "squares": first(between="seen = Mul(normalised, normalised)"),
    "a picture's own mean": first(between="middle = ReduceMean<axes=[2,3]>(normalised) seen = Sub(normalised, middle)"),
    "no pixel is 0": first(normalization=((-0.5,) * 3, (1.0,) * 3)),
    "dilated": first((4, 3, 2, 1), more=", dilations=[2,2]"),
    "pads differ": first(more=", pads=[3,3,2,2]"),
    "no convolution": onnx.ModelProto(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_model_stays_as_it_is(other):
    assert on_pixels(other, SIZE) is None


PLACES, CANDIDATES = 16, 30


def head(*, axis=1, conv="", outputs=1, bias=False, opset=17):
    weight = np.arange(outputs * PLACES, dtype=np.float32).reshape(outputs, PLACES, 1, 1)
    nodes = f"""sides = Reshape(numbers, split) places = Transpose<perm=[0,2,1,3]>(sides)
        shares = Softmax<axis={axis}>(places) means = Conv{conv}(shares, weight{", bias" if bias else ""})"""
    constants = {"weight": weight, "bias": np.ones(outputs), "split": [-1, 4, PLACES, CANDIDATES]}
    return model(f"float[n,{4 * PLACES},{CANDIDATES}] numbers", nodes, "float[] means", opset=opset, **constants)


def operators(model):
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("axis", [1, -3])
def test_means_over_channels_are_the_same_along_the_last_axis(axis):
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


@pytest.mark.parametrize(
    "other",
    [
        *({"axis": 2}, {"axis": -1}, {"outputs": 2}, {"bias": True}, {"opset": 12}),
        *({"conv": "<strides=[1,2]>"}, {"conv": "<pads=[0,1,0,1]>"}),
    ],
    ids=str,
)
def test_other_heads_and_a_softmax_that_others_read_stay_as_they_are(other):
    assert beside_each_other(head(**other)) == head(**other)
    read = head()
    read.graph.output.append(helper.make_tensor_value_info("shares", TensorProto.FLOAT, None))
    assert operators(beside_each_other(read)).count("Softmax") == 2


LAYERS = tuple("abcdefghijklmnopqrst")
ENDS = frozenset("at")


class Network:
    """A tenth of the findings differ for each layer of `harmful` that is not float; `asked` is what was run."""

    def __init__(self, harmful):
        self.harmful = frozenset(harmful)
        self.asked = []

    def __call__(self, in_float):
        self.asked.append(in_float)
        return Harm(len(self.harmful - in_float) / 10, 0.0, 0.01)


def found(network, in_time=lambda: True):
    return "".join(sorted(search(LAYERS, ENDS, network, most_again=1 / 16, in_time=in_time)))


@pytest.mark.parametrize("harmful", ["", "a", "at", "h", "gh", "ck", "bs", "aeq", "bjs"])
def test_the_layers_that_do_harm_are_found_wherever_they_lie_and_nothing_is_measured_twice(harmful):
    assert found(network := Network(harmful)) == harmful
    assert len(network.asked) == len(set(network.asked))
    assert harmful or len(network.asked) == 1


def test_second_looks_count_as_harm_and_layers_of_another_network_are_taken_if_they_do():
    assert found(lambda in_float: Harm(0.0, 0.01 if "k" in in_float else 0.5, 0.0)) == "k"
    assert found(lambda in_float: Harm(0.5, 0.5, 0.1)) == ""

    def asked(harmful, first):
        network = Network(harmful)
        kept = search(LAYERS, ENDS, network, most_again=1 / 16, first=frozenset(first))
        return "".join(sorted(kept)), len(network.asked)

    assert asked("gh", "gh") == ("gh", 2)
    assert asked("", "gh") == ("", 1)
    assert asked("gh", "ck")[0] == "gh"
    assert asked("gh", "z")[0] == "gh"


def test_half_of_the_layers_may_stay_float_and_the_search_ends_with_its_time():
    kept = found(network := Network("abcdefghijklmnop"))
    assert len(kept) <= MOST_FLOAT * len(LAYERS)
    assert max(map(len, network.asked)) <= MOST_FLOAT * len(LAYERS)
    answers = iter([True, True, True])
    assert found(network := Network("h"), lambda: next(answers, False)) in ("", "at")
    assert len(network.asked) == 4
    assert (found(network := Network("h"), lambda: False), len(network.asked)) == ("", 2)
    assert (found(network := Network("at"), lambda: False), len(network.asked)) == ("at", 2)
