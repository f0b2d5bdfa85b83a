"""Experts that a runtime opens as a session: those of kinds that run a file of their own, and the variant `int8`."""

from __future__ import annotations

from coe.core import FULL, Expert
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.onnx_network import OnnxNetwork
from coe.runtime.reading import Weights, proved
from coe.runtime.slot import Slot
from coe.store.blob_format import MODEL
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.runnable_kinds import BACKBONE, NetworkKind, RunnableKind, Session, SessionKind

_MOST_BESIDE = 8 << 20
_BODY_TIMES, _BODY_BESIDE = 3, 8 << 20
"""How many times the bytes of a body its session needs while it is opened, and how many more bytes."""


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


def open_body(slot: Slot, file: Weights, body: Blob, threads: int) -> None:
    """Open the session of a body, unless it is open or torch runs this network; raises StoreError."""
    if body.session is not None or not _runs_apart(slot.kind, file.expert, file.prepared):
        return
    names = {name for name in slot.spec if name.startswith(BACKBONE)}
    if names <= body.tensors.keys() and (model := slot.kind.body_model(slot.module)) is not None:
        weights = {name: body.tensors[name].contiguous() for name in names}
        body.session = OnnxNetwork(model, threads, file.name, weights, one_at_a_time=slot.kind.one_at_a_time)


def body_bytes(kind: RunnableKind, expert: Expert, file: PreparedVariant | Manifest) -> int:
    """Return the bytes of the body of an expert that runs from `file`, with those of its session while that is opened.

    An open session needs a third of them. Measured: 12.6 and 35 to 41 MB beside a body of 11.8 MB.
    """
    size = file.body.bytes if file.body is not None else 0
    apart = size and _runs_apart(kind, expert, file)
    return size + (_BODY_TIMES * size + _BODY_BESIDE if apart else 0)


def _runs_apart(kind: RunnableKind, expert: Expert, file: PreparedVariant | Manifest | None) -> bool:
    has_model = isinstance(kind, NetworkKind) and kind.has_body_model
    return has_model and expert.variant == FULL and isinstance(file, PreparedVariant)
