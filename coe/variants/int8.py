"""An expert as an ONNX model in int8: exported, proved against torch, and quantised with pictures of what it will see.

Weights are int8 with a scale for each output channel, activations uint8 between the least and the largest value that
the pictures gave (static quantisation: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018). On x86 the products of uint8 and int8 are the ones that VNNI computes:
with int8 activations the same model took four times as long. What comes before the first convolution and after the last
stays float: scores and boxes of one tensor have no common scale. `coe.variants.layer_search` finds further layers.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.utils import Extractor

from coe.core import Expert
from coe.errors import NoInt8, StoreError, first_line
from coe.helpers import surroundings
from coe.runtime.onnx_network import OUTPUTS, OnnxNetwork, flat, nesting, open_session
from coe.store import kinds
from coe.store.kinds import FileKind, ModuleKind

OPSET = 17
OFF = 1e-3
"""By how much of the largest output the exported model may differ from torch, in float."""
_NOTHING = 1e-6
"""Numbers that differ by less are the same, however small all of them are."""
_LAYERS = ("Conv", "Gemm", "MatMul")
"""The operators that hold weights; all computation between the first and the last of them is quantised."""
_FEW = 32
"""With fewer weights it is no layer but a sum, as that which makes boxes of distributions in a detector's head."""
_FLOATS = {"LayerNormalization", "InstanceNormalization"}
"""Operators that onnxruntime computes in floats in any case."""
LEAST = 8
"""Fewer pictures say too little about the ranges of numbers."""
_PROVED = 3
"""How many inputs the exported model is proved with: another number than it was traced with."""


def export(
    kind: ModuleKind, expert: Expert, module: torch.nn.Module, pictures: Sequence[kinds.Image]
) -> onnx.ModelProto:
    """Export a network that is ready to infer; batches of any size run in it.

    `pictures` are inputs (3, S, S) uint8, with which the model is proved. Raises StoreError if the network cannot be
    exported, or if the model says something else than torch does.
    """
    network = _Network(kind, module).eval()
    batch = _batch(pictures)
    with torch.inference_mode():
        expected = kind.forward(module, batch)
    names = [f"output{number}" for number in range(len(flat(expected)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of the tracer, about Python's conditions
                torch.onnx.export(
                    network,
                    (batch[:2],),
                    str(path),
                    dynamo=False,
                    opset_version=OPSET,
                    input_names=["images"],
                    output_names=names,
                    dynamic_axes={name: {0: "n"} for name in ("images", *names)},
                )
            model = onnx.load(path)
        except Exception as error:  # the exporter raises what it likes
            raise StoreError(f"kind '{kind.name}' cannot be exported as ONNX ({first_line(error):.300})") from error
    model.metadata_props.add(key=OUTPUTS, value=json.dumps(nesting(expected)))
    _prove(
        model, expert, batch, flat(expected), f"kind '{kind.name}' gives other results as an ONNX model than in torch"
    )
    return model


def of_file(kind: FileKind, expert: Expert, path: Path, pictures: Sequence[kinds.Image]) -> onnx.ModelProto:
    """Return the model of an expert whose runtime opens the file at `path`; the rest is as for `export`."""
    model = kind.network(path, expert)
    if model is None:
        raise StoreError(f"kind '{kind.name}' runs its file unchanged")
    batch = _batch(pictures)
    expected = torch.from_numpy(np.array(kind.open(path, expert, 1).run(batch.numpy())))
    model.metadata_props.add(key=OUTPUTS, value=json.dumps(nesting(expected)))
    _prove(model, expert, batch, [expected], "its model gives other results once it takes pixels directly")
    return model


def _batch(pictures: Sequence[kinds.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([pictures[number % len(pictures)] for number in range(_PROVED)]))


def _prove(
    model: onnx.ModelProto, expert: Expert, batch: torch.Tensor, expected: Sequence[torch.Tensor], fault: str
) -> None:
    actual = OnnxNetwork(model.SerializeToString(), 1, f"the model of '{expert.id}'").run(batch.numpy())
    pairs = list(zip(expected, flat(actual), strict=True))
    # Whole numbers count only if there are no others: which of two near things is chosen may turn with the last bit.
    for exact, seen in [pair for pair in pairs if pair[0].is_floating_point()] or pairs:
        off = max(OFF * float(exact.abs().max()), _NOTHING)
        if exact.shape != seen.shape or not torch.allclose(exact, seen, atol=off, rtol=0):
            raise StoreError(fault)


class Quantiser:
    """Quantises an exported model with any of its layers left in float; the pictures run through it once.

    `layers` are the names of the layers with weights, in the order of computation; `ends` those of them before or after
    which there is none.
    """

    def __init__(self, model: onnx.ModelProto, pictures: Sequence[kinds.Image]) -> None:
        """`pictures` are inputs (3, S, S) uint8 of what the expert will see.

        Raises StoreError if too few of them differ, or are not blank: nothing can be learned from the others.
        """
        seen = {picture.tobytes() for picture in pictures if picture.min() < picture.max()}
        if len(seen) < LEAST:
            few = f"there are only {len(seen)} calibration pictures of it"
            if len(seen) < len(pictures):
                few = f"only {len(seen)} of its {len(pictures)} calibration pictures can be used, because the others "
                few += "are blank or the same"
            raise StoreError(f"{few}; give at least {LEAST} pictures of what it inspects (--images)")
        surroundings.quiet_onnxruntime()
        import onnxruntime
        from onnxruntime.quantization.shape_inference import quant_pre_process

        onnxruntime.set_default_logger_severity(4)  # its own sessions warn of what a file need not hold
        self._pictures = pictures
        self._ranges = b""
        with tempfile.TemporaryDirectory() as folder:
            exported, simple = (str(Path(folder) / name) for name in ("exported.onnx", "simple.onnx"))
            onnx.save(model, exported)
            quant_pre_process(exported, simple, skip_symbolic_shape=True)
            self._model = onnx.load(simple)
        self._on_pixels = on_pixels(self._model, pictures[0].shape[-1])
        if self._on_pixels is not None:
            self._model = self._on_pixels.model
        self._model = beside_each_other(self._model)
        _name_nodes(self._model.graph)
        self.layers, self.ends, self._outside = _parts(self._model.graph)
        if not self.layers:
            raise NoInt8("it has no layers with weights that int8 could speed up")

    def quantised(self, in_float: Collection[str] = ()) -> onnx.ModelProto:
        """Return the model in int8, but for the layers named."""
        from onnxruntime import quantization

        with tempfile.TemporaryDirectory() as folder:
            small, ranges = Path(folder) / "int8.onnx", Path(folder) / "ranges"
            if self._ranges:
                ranges.write_bytes(self._ranges)
            quantization.quantize_static(
                self._copy(),
                small,
                _Reader(self._pictures),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=[*self._outside, *in_float],
                calibration_cache_path=ranges,
                extra_options={
                    "TensorQuantOverrides": self._on_pixels.steps() if self._on_pixels else {},
                    "OpTypesToExcludeOutputQuantization": ["Gemm"],
                },
            )
            self._ranges = ranges.read_bytes()
            model = onnx.load(small)
        # Preparing imports onnxruntime's own operators too. Some of them are fitted to this processor.
        used = {node.domain for node in model.graph.node}
        if used != {""}:
            raise NoInt8(f"it has operators outside the ONNX standard ({', '.join(sorted(used - {''}))})")
        for domain in [one for one in model.opset_import if one.domain not in used]:
            model.opset_import.remove(domain)
        return model

    def _copy(self) -> onnx.ModelProto:
        """Return the model anew: quantising changes it."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self._model)
        return copy


class _Network(torch.nn.Module):
    """A kind's `forward` as a module: what the exporter takes."""

    def __init__(self, kind: ModuleKind, module: torch.nn.Module) -> None:
        super().__init__()
        self.kind, self.module = kind, module

    def forward(self, images: torch.Tensor) -> Any:
        return self.kind.forward(self.module, images)


class _Reader:
    """Gives pictures to onnxruntime one by one, from which it takes the range of each activation."""

    def __init__(self, pictures: Sequence[kinds.Image]) -> None:
        self._inputs = iter([{"images": picture[None]} for picture in pictures])

    def get_next(self) -> dict[str, kinds.Image] | None:
        return next(self._inputs, None)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give a name of its own to each node: by their names nodes are left in float, and a file need not have any."""
    seen = set[str]()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}.{number}"
        seen.add(node.name)


def _parts(graph: onnx.GraphProto) -> tuple[list[str], frozenset[str], list[str]]:
    """Return the names of the layers, of their ends, and of other nodes that stay float, as all outside of the ends."""
    makers = {name: node for node in graph.node for name in node.output}
    sizes = {one.name: math.prod(one.dims) for one in graph.initializer}
    layers = [node.name for node in graph.node if node.op_type in _LAYERS and sizes.get(node.input[1], _FEW) >= _FEW]
    is_layer = frozenset(layers)
    sizes_of_maps = set[str]()
    before: dict[str, bool] = {}
    after: dict[str, bool] = {}
    for node in graph.node:  # in the order of computation
        above = [makers[name] for name in node.input if name in makers]
        before[node.name] = any(one.name in is_layer or before[one.name] for one in above)
        if node.op_type == "Shape" or (above and all(one.name in sizes_of_maps for one in above)):
            sizes_of_maps.add(node.name)  # paddings follow from them: in 8 bits these would be others
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in reversed(graph.node):
        below = [reader for name in node.output for reader in readers.get(name, ())]
        after[node.name] = any(one.name in is_layer or after[one.name] for one in below)
        for name in node.input:
            readers.setdefault(name, []).append(node)
    edge = {node.name for node in graph.node if not (before[node.name] and after[node.name])}
    outside = [node.name for node in graph.node if node.op_type in _FLOATS or node.name in edge | sizes_of_maps]
    return layers, frozenset(edge).intersection(layers), [name for name in outside if name not in is_layer]


# The first convolution of an ONNX model, rewritten to read pixels as they are.
#
# The normalisation goes into its weights and its bias: pixels are whole numbers already, so they are quantised
# without a loss, and nothing is computed in floats before it. Its stride goes into channels (space to depth): a 7 x 7
# convolution of stride 2 over 3 channels is a 4 x 4 one of stride 1 over 12. A convolution in int8 copies what each
# output sees, of 3 channels 3 bytes at a time; that took a fifth of the time of a ResNet18, and a third of a
# YOLOv5n's at 640 pixels.


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
    return OnPixels(_replaced(model, conv, nodes, {named[name]: value for name, value in constants.items()}), zero)


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


# The head of a detector whose boxes have distributions for sides, rewritten so that their means cost little.
#
# Each side is the mean of some sixteen places, weighted by a softmax (Li et al., "Generalized Focal Loss", 2020; in
# ultralytics' networks the layer DFL). The softmax runs over channels, which lie apart, and a convolution adds them
# up: onnxruntime needs eight times as long for this as over numbers that lie beside each other, a fifth of the time
# of a YOLOv5n in int8. The outputs are the same.


_OPSET = 13
"""Before it a softmax ran over all axes from its own on."""


def beside_each_other(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose means over channels, Softmax and Conv (1, c, 1, 1), run over the last axis instead."""
    if next((one.version for one in model.opset_import if not one.domain), 0) < _OPSET:
        return model
    while (found := _mean(model.graph)) is not None:
        conv, softmax, weight = found
        name = f"{conv.output[0]}_last"
        nodes = [
            helper.make_node("Transpose", [softmax.input[0]], [f"{name}_in"], perm=[0, 2, 3, 1]),
            helper.make_node("Softmax", [f"{name}_in"], [f"{name}_shares"], axis=-1),
            helper.make_node("MatMul", [f"{name}_shares", f"{name}_places"], [f"{name}_means"]),
            helper.make_node("Transpose", [f"{name}_means"], [conv.output[0]], perm=[0, 3, 1, 2]),
        ]
        places = numpy_helper.to_array(weight).reshape(-1, 1)
        model = _replaced(model, conv, nodes, {f"{name}_places": places})
    return model


def _mean(graph: onnx.GraphProto) -> tuple[onnx.NodeProto, onnx.NodeProto, onnx.TensorProto] | None:
    """Return a convolution that is a mean over channels, the softmax that it reads, and its weight."""
    makers = {name: node for node in graph.node for name in node.output}
    weights = {one.name: one for one in graph.initializer}
    for conv in graph.node:
        if conv.op_type != "Conv" or len(conv.input) != 2 or conv.input[1] not in weights:
            continue
        softmax, weight = makers.get(conv.input[0]), weights[conv.input[1]]
        one_sum = len(weight.dims) == 4 and (weight.dims[0], *weight.dims[2:]) == (1, 1, 1)
        if softmax is None or softmax.op_type != "Softmax" or not one_sum:
            continue
        said = _attributes(conv)
        plain = {*said.get("strides", [1])} == {1} and not any(said.get("pads", ())) and said.get("group", 1) == 1
        if plain and _attributes(softmax).get("axis", -1) in (1, -3):
            return conv, softmax, weight
    return None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def _replaced(
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
