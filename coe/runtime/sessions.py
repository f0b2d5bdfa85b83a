"""Experts that a runtime opens as a session: those of kinds that run a file of their own, and the variant `int8`."""

from __future__ import annotations

from coe.core import Expert
from coe.runtime.buffers import Buffers
from coe.runtime.onnx_network import OnnxNetwork
from coe.runtime.reading import Weights, proved
from coe.store.blob_format import MODEL
from coe.store.runnable_kinds import RunnableKind, Session, SessionKind

_MOST_BESIDE = 8 << 20


def runs_as_session(kind: RunnableKind, expert: Expert) -> bool:
    """Tell whether a runtime opens an expert's file as a session; else its weights are bound to a network."""
    return isinstance(kind, SessionKind) or expert.variant == "int8"


def session_of(kind: RunnableKind, file: Weights, threads: int, buffers: Buffers) -> Session:
    """Open a session from the very bytes that were proved: the file may change between the check and the open.

    Raises StoreError.
    """
    if isinstance(kind, SessionKind) and file.prepared is None:
        return kind.open_bytes(proved(file), file.path, file.manifest.fit(file.expert), threads)
    blob = file.read(buffers)
    try:
        model = blob.tensors.pop(MODEL).numpy().tobytes()
        return OnnxNetwork(model, threads, file.name, blob.tensors, one_at_a_time=kind.one_at_a_time)
    finally:
        blob.release()


def opening_bytes(file: Weights) -> int:
    """Return the bytes that opening a session needs for a moment, beside those that the session keeps.

    They are the file as it was read, the model in it as onnxruntime parses it, and what it builds; weights beside the
    model are packed from where they lie. Measured, beside files of 4, 11 and 43 MB: 3, 0 and 0.4 MB; for the
    last two 20 and 42 MB if the weights are in the model. Raises StoreError if the file cannot be read.
    """
    model_bytes = file.bytes
    if file.prepared is not None:
        model_bytes = next(entry.bytes for entry in file.outline().entries if entry.name == MODEL)
    return file.bytes + model_bytes + min(2 * file.bytes, _MOST_BESIDE)
