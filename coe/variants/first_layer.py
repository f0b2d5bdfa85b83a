"""The first convolution of an ONNX model, rewritten to read pixels as they are.

The normalisation goes into its weights and its bias: pixels are whole numbers already, so they are quantised without a
loss, and nothing is computed in floats before it. Its stride goes into channels (space to depth): a 7 x 7 convolution
of stride 2 over 3 channels is a 4 x 4 one of stride 1 over 12. A convolution in int8 copies what each output sees, of 3
channels 3 bytes at a time; that took a fifth of the time of a ResNet18, and a third of a YOLOv5n's at 640 pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.utils import Extractor

from coe.runtime.onnx_network import open_session
from coe.variants.onnx_graph import replaced

PIXELS = "pixels"
"""The tensor that the rewritten convolution reads: pixels less `OnPixels.zero`."""
_EXACT = 1e-4
"""How far normalised pixels may be from a line through those of their channel, as a share of the largest number."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OnPixels:
    """A model whose first convolution reads `PIXELS`, and the pixel that is 0 there."""

    model: onnx.ModelProto
    zero: int

    def steps(self) -> dict[str, list[dict[str, NDArray[Any]]]]:
        """Return what onnxruntime's quantiser has to know: each pixel is its own whole number."""
        return {PIXELS: [{"scale": np.array(1, np.float32), "zero_point": np.array(self.zero, np.uint8)}]}


def on_pixels(model: onnx.ModelProto, size: int) -> OnPixels | None:
    """Rewrite the first convolution of a model that takes `images`, (n, 3, size, size) uint8 RGB, with shapes inferred.

    Around a normalised picture a convolution sees 0, here the nearest pixel, which is off by half a step at most.
    Returns None for a model that does more to pixels than to multiply and to add a number for each channel before its
    first convolution, for one that makes 0 of no pixel, and for a convolution with groups or dilations.
    """
    weights = {one.name: numpy_helper.to_array(one).astype(np.float64) for one in model.graph.initializer}
    conv = next((node for node in model.graph.node if node.op_type == "Conv"), None)
    if conv is None or not weights.keys() >= {*conv.input[1:]}:
        return None
    weight = weights[conv.input[1]]
    bias = weights[conv.input[2]] if len(conv.input) > 2 else np.zeros(len(weight))
    line, window = _normalisation(model, conv.input[0], size), _Window.of(conv, weight.shape, size)
    if line is None or window is None:
        return None
    slope, offset = line
    empty = np.round(-offset / slope)
    if empty.min() < 0 or empty.max() > 255:
        return None
    zero = round(float(empty.mean()))
    squares = window.weight(weight * slope[:, None, None])
    constants = {
        "weight": squares.astype(np.float32),
        "bias": (bias + (weight * (offset + zero * slope)[:, None, None]).sum(axis=(1, 2, 3))).astype(np.float32),
        "scale": np.float32(1),
        "split": np.ones(3, np.int64),
        "zero": np.uint8(zero),
        "pads": np.array([0, 0, window.before, window.before, 0, 0, window.after, window.after]),
        **{f"empty{channel}": pixel for channel, pixel in enumerate(empty.astype(np.uint8))},
    }
    named = {name: f"{PIXELS}_{name}" for name in constants}
    channels = [f"{PIXELS}_{channel}" for channel in range(3)]
    nodes = [
        helper.make_node("Split", ["images", named["split"]], channels, axis=1),
        *(
            helper.make_node("Pad", [channel, named["pads"], named[f"empty{number}"]], [f"{channel}_padded"])
            for number, channel in enumerate(channels)
        ),
        helper.make_node("Concat", [f"{channel}_padded" for channel in channels], [f"{PIXELS}_padded"], axis=1),
        helper.make_node("SpaceToDepth", [f"{PIXELS}_padded"], [f"{PIXELS}_squares"], blocksize=window.stride),
        helper.make_node("DequantizeLinear", [f"{PIXELS}_squares", named["scale"], named["zero"]], [PIXELS]),
        helper.make_node("Conv", [PIXELS, named["weight"], named["bias"]], [*conv.output], name=conv.name),
    ]
    for number, node in enumerate(nodes[:-1]):
        node.name = f"{PIXELS}{number}"
    return OnPixels(replaced(model, conv, nodes, {named[name]: value for name, value in constants.items()}), zero)


@dataclass(frozen=True, slots=True)
class _Window:
    """A square convolution: `stride`, `kernel`, pixels around the picture `before` and `after`, in both directions."""

    stride: int
    kernel: int
    before: int
    after: int

    @staticmethod
    def of(conv: onnx.NodeProto, shape: tuple[int, ...], size: int) -> _Window | None:
        """Return what a node of a picture of `size` pixels sees, in whole squares; None if it is of another kind."""
        said: dict[str, Any] = {one.name: helper.get_attribute_value(one) for one in conv.attribute}
        strides, pads = said.get("strides", [1, 1]), said.get("pads", [0] * 4)
        usual = said.get("group", 1) == 1 and {*said.get("dilations", [1])} == {1}
        square = len(shape) == 4 and shape[1:] == (3, shape[2], shape[2]) and len({*strides}) == len({*pads}) == 1
        if not (usual and square) or said.get("auto_pad", b"NOTSET") != b"NOTSET":
            return None
        stride, kernel, before = strides[0], shape[2], pads[0]
        outputs = (size + 2 * before - kernel) // stride + 1
        after = stride * (outputs - 1 + math.ceil(kernel / stride)) - size - before
        return _Window(stride, kernel, before, after) if outputs > 0 and after >= 0 else None

    def weight(self, weight: Floats) -> Floats:
        """Return a weight (outputs, 3, k, k) for squares of `stride` pixels: (outputs, stride * stride * 3, m, m)."""
        missing = -self.kernel % self.stride
        whole = np.pad(weight, ((0, 0), (0, 0), (0, missing), (0, missing)))
        squares = whole.shape[2] // self.stride
        parts = whole.reshape(len(weight), 3, squares, self.stride, squares, self.stride).transpose(0, 3, 5, 1, 2, 4)
        return parts.reshape(len(weight), -1, squares, squares)


def _normalisation(model: onnx.ModelProto, tensor: str, size: int) -> tuple[Floats, Floats] | None:
    """Return slope and offset of each channel, if a tensor is that of `images`; it is tried on four pictures."""
    session = open_session(Extractor(model).extract_model(["images"], [tensor]).SerializeToString(), 1)
    chance = np.random.default_rng(0)
    pictures = np.stack([np.full((3, size, size), pixel, np.uint8) for pixel in (0, 255, 0, 0)])
    pictures[2:] = chance.integers(0, 256, pictures[2:].shape)
    pictures[3] //= 4
    seen = np.concatenate([session.run(None, {"images": one[None]})[0] for one in pictures]).astype(np.float64)
    if seen.shape != pictures.shape:
        return None
    offset = seen[0, :, 0, 0]
    slope = (seen[1, :, 0, 0] - offset) / 255
    expected = pictures * slope[:, None, None] + offset[:, None, None]
    exact = slope.all() and np.abs(seen - expected).max() <= _EXACT * np.abs(expected).max()
    return (slope, offset) if exact else None
