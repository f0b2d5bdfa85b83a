"""The bodies that lie on a device, each once for all experts that have it, for good."""

from __future__ import annotations

from dataclasses import dataclass

from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.blob import Structure
from coe.runtime.cuda.blob_memory import BlobMemory, Resident
from coe.runtime.cuda.pinned_memory import Copy, HostMemory
from coe.runtime.cuda.unpacking import Unpacking
from coe.runtime.reading import Weights, weights
from coe.store.blob_format import PAGE, Content, padded
from coe.store.store_reader import StoreReader


@dataclass(frozen=True, slots=True)
class DeviceBody:
    """A body on the device."""

    resident: Resident
    content: Content


class DeviceBodies:
    """Bodies by digest, in `memory` and on their way through `host`. The disk reader calls `read`, the lane `of`."""

    def __init__(self, store: StoreReader, host: HostMemory, memory: BlobMemory) -> None:
        self._store, self._host, self._memory = store, host, memory
        self._bodies: dict[str, DeviceBody] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def bytes(self) -> dict[str, int]:
        """The bytes of the bodies on the device, by digest, each in whole pages."""
        return {digest: padded(body.resident.size, PAGE) for digest, body in list(self._bodies.items())}

    def read(self, file: Weights) -> None:
        """Read the file of a body into pinned memory, unless it is there or on the device; see `of`.

        Raises StoreError, DeviceFull.
        """
        name, host = _staged(file.digest), self._host
        with host.lock:
            if file.digest in self._bodies or host.copy_of(name) is not None:
                return
        copy = Copy(*file.content(host))
        with host.lock:
            if file.digest in self._bodies:  # the lane has read it meanwhile
                host.give(copy.buffer)
            else:
                host.keep(name, copy)

    def of(self, digest: str, expert: Expert, structure: Structure) -> DeviceBody | None:
        """Return the body of a digest for an expert; None if it is "".

        A body that is not there is copied from pinned memory, or read first; it runs in `structure`. Hold the lock of
        pinned memory. Raises StoreError, DeviceFull, DeviceLost.
        """
        if not digest or digest in self._bodies:
            return self._bodies.get(digest)
        copy = self._host.pull(_staged(digest)) or self._read(digest, expert)
        try:
            resident = self._memory.put(f"body of {expert.id}", copy.data(), Unpacking(copy.content, structure))
            copy.buffer.busy = resident.written
        finally:
            self._host.give(copy.buffer)
        body = self._bodies[digest] = DeviceBody(resident, copy.content)
        return body

    def _read(self, digest: str, expert: Expert) -> Copy:
        file = weights(self._store, expert).body
        if file is None or file.digest != digest:
            raise StoreError(f"expert '{expert.id}' has another body than when it was read; open the line again")
        return Copy(*file.content(self._host))


def _staged(digest: str) -> tuple[str, str]:
    """Return the name of a body in pinned memory."""
    return "body", digest
