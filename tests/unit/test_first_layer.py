"""The first convolution of an ONNX model reads pixels as they are, and answers what it answered."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from coe.prepare.first_layer import PIXELS, OnPixels, on_pixels
from coe.preprocessing import NORMALIZATIONS, Colour
from coe.runtime.onnx_network import open_session

SIZE = 32
Shape = tuple[int, int, int, int]


def model(
    shape: Shape = (4, 7, 2, 3),
    normalization: tuple[Colour, Colour] = NORMALIZATIONS["imagenet"],
    *,
    between: list[onnx.NodeProto] | None = None,
    size: int = SIZE,
    **attributes: object,
) -> onnx.ModelProto:
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


def answer(network: onnx.ModelProto, pictures: np.ndarray) -> np.ndarray:
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
def test_the_rewritten_layer_answers_what_it_answered(shape: Shape, size: int, normalization: str) -> None:
    before = model(shape, NORMALIZATIONS[normalization], size=size)
    after = on_pixels(before, size)
    assert after is not None
    onnx.checker.check_model(after.model, full_check=True)
    pictures = np.random.default_rng(1).integers(0, 256, (3, 3, size, size), np.uint8)
    exact, seen = answer(before, pictures), answer(after.model, pictures)
    assert exact.shape == seen.shape
    inside = (slice(None), slice(None), slice(3, -3), slice(3, -3))
    np.testing.assert_allclose(seen[inside], exact[inside], atol=1e-4)
    # Around the picture lies the nearest pixel to 0: off by half a step of a pixel, for each weight that lies there.
    np.testing.assert_allclose(seen, exact, atol=0.05)


def test_pixels_come_to_the_layer_as_they_are() -> None:
    after = on_pixels(model(), SIZE)
    assert after is not None
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


def refused(case: str) -> OnPixels | None:
    brighter = helper.make_node("Mul", ["normalised", "normalised"], ["seen"])
    middle = [
        helper.make_node("ReduceMean", ["normalised"], ["middle"], axes=[2, 3]),
        helper.make_node("Sub", ["normalised", "middle"], ["seen"]),
    ]
    models = {
        "squares": model(between=[brighter]),
        "a picture's own mean": model(between=middle),
        "no pixel is 0": model(normalization=((-0.5,) * 3, (1.0,) * 3)),
        "dilated": model((4, 3, 2, 1), dilations=[2, 2]),
        "pads differ": model(pads=[3, 3, 2, 2]),
        "no convolution": onnx.ModelProto(),
    }
    return on_pixels(models[case], SIZE)


@pytest.mark.parametrize(
    "case", ["squares", "a picture's own mean", "no pixel is 0", "dilated", "pads differ", "no convolution"]
)
def test_another_model_stays_as_it_is(case: str) -> None:
    assert refused(case) is None
