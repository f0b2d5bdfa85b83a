"""A quantised ONNX model as a blob holds it: ready to open quickly, on any processor.

Operators are fused, and their pixels laid beside each other, once, here, and not each time that the model is opened: by
onnxruntime, without layouts of one processor alone. The weights of layers in int8 leave the model: they are
packed from where they were read, where weights in the model are copied twice before. Both halve the time to open a
ResNet101. Short names, and equal constants that stand there once, take another fifth from that of a YOLOv5m.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from coe.errors import StoreError
from coe.helpers import surroundings
from coe.runtime.onnx_network import ELSEWHERE, READY

_PORTABLE = {"", "com.microsoft"}
"""The operators of ONNX, and those of onnxruntime that each of its builds for CPUs has."""
_OF_ONE_PROCESSOR = ["NchwcTransformer"]
"""The passes that lay numbers out as wide as the registers of the processor at hand."""
_LAID_OUT = {"Conv", "FusedConv"}
"""The operators in floats for whose sake they do."""
_PACKING = {"QLinearConv", "QGemm", "QLinearMatMul"}
"""The operators that read their weights when a model is opened, and not before: what rewrites models leaves them."""


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """Fuse a quantised model; raises StoreError if a result would be of this processor alone."""
    surroundings.quiet_onnxruntime()
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fused.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(path)
        onnxruntime.disable_telemetry_events()
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=_OF_ONE_PROCESSOR
        )
        made = onnx.load(path)
    used = {node.domain for node in made.graph.node}
    if not used <= _PORTABLE:
        raise StoreError(f"it has operators that not every processor has ({', '.join(sorted(used - _PORTABLE))})")
    # It names every set of operators that the library knows.
    for domain in [one for one in made.opset_import if one.domain not in used]:
        made.opset_import.remove(domain)
    if not any(node.op_type in _LAID_OUT for node in made.graph.node):
        made.metadata_props.add(key=READY, value="1")
    del made.graph.value_info[:]  # types and shapes by names that go; they are inferred again
    _shorten(made.graph)
    return made


def _shorten(graph: onnx.GraphProto) -> None:
    """Keep one of equal constants, and name all but inputs and outputs by numbers; parts of a graph see no names."""
    names = {name: name for name in ("", *(one.name for one in (*graph.input, *graph.output)))}
    constants = list(graph.initializer)
    has_parts = any(one.type == onnx.AttributeProto.GRAPH for node in graph.node for one in node.attribute)
    if has_parts or any(one.name in names for one in constants):
        return
    fresh = (name for name in map(str, itertools.count()) if name not in names)
    equals: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    del graph.initializer[:]
    for tensor in constants:
        numbers = numpy_helper.to_array(tensor)
        key = tensor.data_type, numbers.shape, hashlib.sha256(numbers.tobytes()).digest()  # no copy stays
        if key not in equals:
            equals[key] = next(fresh)
            graph.initializer.append(tensor)
            graph.initializer[-1].name = equals[key]
        names[tensor.name] = equals[key]
    for node in graph.node:
        node.name = ""
        for values in (node.input, node.output):
            for place, name in enumerate(values):
                if name not in names:
                    names[name] = next(fresh)
                values[place] = names[name]


def divided(model: onnx.ModelProto) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Take the weights of layers in int8 out of a fused model, which is changed; return both."""
    read = [(name, node.op_type) for node in model.graph.node for name in node.input]
    kept = {name for name, reader in read if reader not in _PACKING} | {one.name for one in model.graph.output}
    weights: dict[str, torch.Tensor] = {}
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.INT8 or len(tensor.dims) < 2 or tensor.name in kept:
            continue
        numbers = np.array(numpy_helper.to_array(tensor))
        weights[tensor.name] = torch.from_numpy(numbers)
        tensor.ClearField("raw_data")
        tensor.ClearField("int32_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", ELSEWHERE), ("length", str(numbers.nbytes))):
            tensor.external_data.add(key=key, value=value)
    return model.SerializeToString(), weights
