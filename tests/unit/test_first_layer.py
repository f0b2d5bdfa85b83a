"""The first convolution of an ONNX model reads pixels as they are, and answers what it answered."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from coe.helpers.preprocessing import NORMALIZATIONS
from coe.runtime.onnx_network import open_session
from coe.variants.int8 import PIXELS, beside_each_other, on_pixels
from coe.variants.layer_search import MOST_FLOAT, Harm, search

SIZE = 32


def model(shape=(4, 7, 2, 3), normalization=NORMALIZATIONS["imagenet"], *, between=None, size=SIZE, **attributes):
    """Make a network of one layer: `shape` is outputs, kernel, stride and pixels around the picture."""
    outputs, kernel, stride, around = shape
    mean, deviation = (np.array(colour, np.float32)[:, None, None] for colour in normalization)
    weight = np.random.default_rng(2).normal(0, 0.1, (outputs, 3, kernel, kernel)).astype(np.float32)
    constants = {
        "byte": np.float32(255),
        "mean": mean,
        "deviation": deviation,
        "weight": weight,
        "bias": np.arange(outputs, dtype=np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["floats", "byte"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "deviation"], ["normalised"]),
        *(between or []),
        helper.make_node(
            "Conv",
            ["seen" if between else "normalised", "weight", "bias"],
            ["answer"],
            name="first",
            **{"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [around] * 4, **attributes},
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", onnx.TensorProto.UINT8, ["n", 3, size, size])],
        [helper.make_tensor_value_info("answer", onnx.TensorProto.FLOAT, ["n", outputs, None, None])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def answer(network, pictures):
    return np.asarray(open_session(network.SerializeToString(), 1).run(None, {"images": pictures})[0])


@pytest.mark.parametrize("normalization", ["imagenet", "0..1", "-1..1"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((4, 7, 2, 3), 32),  # ResNet
        ((4, 6, 2, 2), 32),  # YOLOv5
        ((4, 3, 2, 1), 33),
        ((4, 3, 1, 1), 32),
        ((4, 4, 4, 0), 32),  # patches
    ],
)
def test_the_rewritten_layer_answers_what_it_answered(shape, size, normalization):
    before = model(shape, NORMALIZATIONS[normalization], size=size)
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
    after = on_pixels(model(), SIZE)
    assert after.zero == 115  # of 124, 116 and 104
    (reader,) = (node for node in after.model.graph.node if PIXELS in node.output)
    scale, zero = (
        float(numpy_helper.to_array(one))
        for name in reader.input[1:]
        for one in after.model.graph.initializer
        if one.name == name
    )
    assert (reader.op_type, scale, zero) == ("DequantizeLinear", 1.0, 115.0)
    assert "Div" not in {node.op_type for node in after.model.graph.node}


BRIGHTER = [helper.make_node("Mul", ["normalised", "normalised"], ["seen"])]
OWN_MEAN = [
    helper.make_node("ReduceMean", ["normalised"], ["middle"], axes=[2, 3]),
    helper.make_node("Sub", ["normalised", "middle"], ["seen"]),
]
OTHERS = {
    "squares": model(between=BRIGHTER),
    "a picture's own mean": model(between=OWN_MEAN),
    "no pixel is 0": model(normalization=((-0.5,) * 3, (1.0,) * 3)),
    "dilated": model((4, 3, 2, 1), dilations=[2, 2]),
    "pads differ": model(pads=[3, 3, 2, 2]),
    "no convolution": onnx.ModelProto(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_model_stays_as_it_is(other):
    assert on_pixels(other, SIZE) is None


PLACES, CANDIDATES = 16, 30


def head(*, axis=1, conv=None, outputs=1, bias=False, opset=17):
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


def test_a_softmax_that_others_read_stays():
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
def test_other_heads_stay_as_they_are(model):
    assert beside_each_other(model) == model


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
