"""A model in int8 as the library opens it by itself: what sessions of lines are compared with."""

from __future__ import annotations

from typing import Any

from coe import surroundings


def library_session(model: bytes, threads: int) -> Any:
    """Open a model as an `onnxruntime.InferenceSession` with the library's defaults, but for the number of threads."""
    surroundings.quiet_onnxruntime()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
