"""A model in int8 as the library opens it by itself: what sessions of lines are compared with."""

from __future__ import annotations

from typing import Any

import onnx

from coe.helpers import surroundings
from coe.runtime.buffers import Buffers
from coe.runtime.reading import Weights
from coe.store.blob_format import MODEL


def whole_model(weights: Weights) -> bytes:
    """Return the ONNX model of a blob in `int8` with all its weights in it; raises StoreError."""
    blob = weights.read(Buffers())
    model = onnx.load_from_string(blob.tensors[MODEL].numpy().tobytes())
    for tensor in model.graph.initializer:
        if tensor.name in blob.tensors:
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = blob.tensors[tensor.name].numpy().tobytes()
    blob.release()
    return bytes(model.SerializeToString())


def library_session(model: bytes, threads: int) -> Any:
    """Open a model as an `onnxruntime.InferenceSession` with the library's defaults, but for the number of threads."""
    surroundings.quiet_onnxruntime()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
