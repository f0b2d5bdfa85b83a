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
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from coe.core import Expert
from coe.errors import NoInt8, StoreError, first_line
from coe.helpers import surroundings
from coe.runtime.onnx_network import OUTPUTS, OnnxNetwork, flat, nesting
from coe.store import kinds
from coe.store.kinds import FileKind, ModuleKind
from coe.variants import box_sides, first_layer

OPSET = 17
OFF = 1e-3
"""By how much of the largest output the exported model may differ from torch, in float."""
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
        model, expert, batch, flat(expected), f"kind '{kind.name}' says something else as an ONNX model than in torch"
    )
    return model


def of_file(kind: FileKind, expert: Expert, path: Path, pictures: Sequence[kinds.Image]) -> onnx.ModelProto:
    """Return the model of an expert whose runtime opens the file at `path`; the rest is as for `export`."""
    model = kind.network(path, expert)
    if model is None:
        raise StoreError(f"kind '{kind.name}' runs its file as it is")
    batch = _batch(pictures)
    expected = torch.from_numpy(np.array(kind.open(path, expert, 1).run(batch.numpy())))
    model.metadata_props.add(key=OUTPUTS, value=json.dumps(nesting(expected)))
    _prove(model, expert, batch, [expected], "its model says something else once it takes pixels as they are")
    return model


def _batch(pictures: Sequence[kinds.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([pictures[number % len(pictures)] for number in range(_PROVED)]))


def _prove(
    model: onnx.ModelProto, expert: Expert, batch: torch.Tensor, expected: Sequence[torch.Tensor], fault: str
) -> None:
    actual = OnnxNetwork(model.SerializeToString(), 1, f"the model of '{expert.id}'").run(batch.numpy())
    for exact, seen in zip(expected, flat(actual), strict=True):
        if exact.shape != seen.shape or not torch.allclose(exact, seen, atol=OFF * float(exact.abs().max()), rtol=0):
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
        self._on_pixels = first_layer.on_pixels(self._model, pictures[0].shape[-1])
        if self._on_pixels is not None:
            self._model = self._on_pixels.model
        self._model = box_sides.beside_each_other(self._model)
        _name_nodes(self._model.graph)
        self.layers, self.ends, self._outside = _parts(self._model.graph)
        if not self.layers:
            raise NoInt8("it has no layers with weights, so whole numbers would make nothing faster")

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
            raise NoInt8(f"it has operators that are none of ONNX's own ({', '.join(sorted(used - {''}))})")
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
