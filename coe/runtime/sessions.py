"""Experts that a runtime opens as a session: those of kinds that run a file of their own, and the variant `int8`."""

from __future__ import annotations

from coe.core import FULL, Expert
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.onnx_network import OnnxNetwork
from coe.runtime.reading import Weights, proved
from coe.runtime.slot import Slot
from coe.store.blob_format import MODEL
from coe.store.runnable_kinds import BACKBONE, NetworkKind, RunnableKind, Session, SessionKind

_MOST_BESIDE = 8 << 20
_SESSION_BESIDE = 2 << 20
"""How many more bytes than the body itself its open session takes. Measured: 0.8 and 0.5 MB beside 11.8 and 2.8."""


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


def opening_bytes(kind: RunnableKind, file: Weights) -> int:
    """Return the bytes that opening a session of an expert or of its body needs for a moment, beside what stays.

    They are the file as it was read, the model in it as onnxruntime parses it, and what it builds; weights beside the
    model are packed from where they lie. Measured, beside files of 4, 11 and 43 MB: 3, 0 and 0.4 MB; for the
    last two 20 and 42 MB if the weights are in the model; for bodies of 2.8 and 11.8 MB 5 and 28. 0: nothing is opened.
    Raises StoreError if the file cannot be read.
    """
    if not runs_as_session(kind, file.expert):
        body = file.body if _runs_apart(kind, file) else None
        return 0 if body is None else 2 * body.bytes + _MOST_BESIDE
    model_bytes = file.bytes
    if file.prepared is not None:
        model_bytes = next(entry.bytes for entry in file.outline().entries if entry.name == MODEL)
    return file.bytes + model_bytes + min(2 * file.bytes, _MOST_BESIDE)


def open_body(slot: Slot, file: Weights, body: Blob, threads: int) -> bool:
    """Open the session of a body, unless it is open or torch runs this network; tell whether. Raises StoreError."""
    if body.session is not None or not _runs_apart(slot.kind, file):
        return False
    names = {name for name in slot.spec if name.startswith(BACKBONE)}
    if not names <= body.tensors.keys() or (model := slot.kind.body_model(slot.module)) is None:
        return False
    weights = {name: body.tensors[name].contiguous() for name in names}
    body.session = OnnxNetwork(model, threads, file.name, weights, one_at_a_time=slot.kind.one_at_a_time)
    return True


def body_bytes(kind: RunnableKind, file: Weights) -> int:
    """Return the bytes of the body of an expert, with those of its open session; 0 without a body."""
    size = file.body.bytes if file.body is not None else 0
    return size + (size + _SESSION_BESIDE if size and _runs_apart(kind, file) else 0)


def _runs_apart(kind: RunnableKind, file: Weights) -> bool:
    has_model = isinstance(kind, NetworkKind) and kind.has_body_model
    return has_model and file.expert.variant == FULL and file.prepared is not None
