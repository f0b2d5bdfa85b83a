"""An expert as an ONNX model in int8: exported, proved against torch, and quantised with pictures of what it will see.

Weights are int8 with a scale for each output channel, activations uint8 between the least and the largest value that
the pictures gave (static quantisation: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018). On x86 the products of uint8 and int8 are the ones that VNNI computes:
with int8 activations the same model took four times as long. What comes before the first convolution and after the last
stays float: scores and boxes of one tensor have no common scale.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from coe import surroundings
from coe.core import Expert
from coe.errors import StoreError, first_line
from coe.runtime.onnx_network import OUTPUTS, OnnxNetwork, flat, nesting
from coe.store import kinds
from coe.store.kinds import ModuleKind

OPSET = 17
OFF = 1e-3
"""By how much of the largest output the exported model may differ from torch, in float."""
_LAYERS = ("Conv", "Gemm", "MatMul")
"""The operators that hold weights; all computation between the first and the last of them is quantised."""
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
    batch = torch.from_numpy(np.stack([pictures[number % len(pictures)] for number in range(_PROVED)]))
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
    actual = OnnxNetwork(model.SerializeToString(), 1, f"the model of '{expert.id}'").run(batch.numpy())
    for exact, seen in zip(flat(expected), flat(actual), strict=True):
        if exact.shape != seen.shape or not torch.allclose(exact, seen, atol=OFF * float(exact.abs().max()), rtol=0):
            raise StoreError(f"kind '{kind.name}' says something else as an ONNX model than in torch")
    return model


def quantised(model: onnx.ModelProto, pictures: Sequence[kinds.Image], *, float_ends: bool) -> onnx.ModelProto:
    """Return an exported model in int8; with `float_ends` its first and its last layers stay float.

    `pictures` are inputs (3, S, S) uint8 of what the expert will see; raises StoreError if they are all the same and
    blank, because nothing can be learned from them.
    """
    if all(picture.min() == picture.max() for picture in pictures):
        raise StoreError("its calibration pictures are blank; give pictures of what it inspects (--images)")
    surroundings.quiet_onnxruntime()
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        exported, simple, small = (str(Path(folder) / name) for name in ("exported.onnx", "simple.onnx", "int8.onnx"))
        onnx.save(model, exported)
        quant_pre_process(exported, simple, skip_symbolic_shape=True)
        quantization.quantize_static(
            simple,
            small,
            _Reader(pictures),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=_kept_float(onnx.load(simple).graph, ends=float_ends),
        )
        return onnx.load(small)


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


def _kept_float(graph: onnx.GraphProto, *, ends: bool) -> list[str]:
    """Return the names of the nodes before the first layers and after the last ones; with `ends`, those too."""
    makers = {name: node for node in graph.node for name in node.output}
    before: dict[str, bool] = {}
    after: dict[str, bool] = {}
    for node in graph.node:  # in the order of computation
        above = [makers[name] for name in node.input if name in makers]
        before[node.name] = any(one.op_type in _LAYERS or before[one.name] for one in above)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in reversed(graph.node):
        below = [reader for name in node.output for reader in readers.get(name, ())]
        after[node.name] = any(one.op_type in _LAYERS or after[one.name] for one in below)
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return [
        node.name
        for node in graph.node
        if not (before[node.name] and after[node.name]) and (ends or node.op_type not in _LAYERS)
    ]
