"""Experts that a runtime opens as a session: those of kinds that run a file of their own, and the variant `int8`."""

from __future__ import annotations

from coe.core import Expert
from coe.runtime.buffers import Buffers
from coe.runtime.onnx_network import OnnxNetwork
from coe.runtime.reading import Weights, model, proved
from coe.store.kinds import FileKind, Kind, Session

_MOST_BESIDE = 8 << 20


def runs_as_session(kind: Kind, expert: Expert) -> bool:
    """Tell whether a runtime opens an expert's file as a session; else its weights are bound to a network."""
    return isinstance(kind, FileKind) or expert.variant == "int8"


def session_of(kind: Kind, file: Weights, threads: int, buffers: Buffers) -> Session:
    """Open a session from the very bytes that were proved: the file may change between the check and the open.

    Raises StoreError.
    """
    if isinstance(kind, FileKind):
        return kind.open_bytes(proved(file), file.path, file.manifest.fit(file.expert), threads)
    content = model(file, buffers)
    buffers.make_room(buffers.idle_bytes)  # the session has its own
    return OnnxNetwork(content, threads, file.name)


def opening_bytes(file_bytes: int) -> int:
    """Return the bytes that opening a session needs for a moment, beside those that the session keeps.

    They are the model, as it was read and as onnxruntime parses it, and a layer that is packed anew. Measured for files
    of 3, 4, 11 and 44 MB: 4, 13, 30 and 86 MB.
    """
    return 2 * file_bytes + min(2 * file_bytes, _MOST_BESIDE)
