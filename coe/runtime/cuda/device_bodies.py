"""The bodies that lie on a device, each once for all experts of a pool that have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.blob import Content, Structure
from coe.runtime.cuda.blob_memory import BlobMemory, Resident
from coe.runtime.cuda.pinned_memory import Copy, HostMemory
from coe.runtime.cuda.unpacking import Unpacking
from coe.runtime.reading import Weights, weights
from coe.store.store_reader import StoreReader


@dataclass(frozen=True, slots=True)
class DeviceBody:
    """A body on the device; `is_private` if it belongs to one expert, because nobody brought it for its pool."""

    resident: Resident
    content: Content
    is_private: bool


class DeviceBodies:
    """Bodies by pool and digest, in `memory` and on their way through `host`.

    The disk reader calls `read`, the copy lane all else, `let_go` both.
    A body that was read waits in pinned memory as long as a load is under way that may copy it to the device.
    """

    def __init__(self, store: StoreReader, host: HostMemory, memory: BlobMemory) -> None:
        self._store, self._host, self._memory = store, host, memory
        self._bodies: dict[tuple[str, str], DeviceBody] = {}
        self._awaiting: dict[tuple[str, str], str] = {}
        """By pool and expert: loads under way for which a body was read, and its digest."""

    def __len__(self) -> int:
        return len(self._bodies)

    def read(self, pool: str, expert: str, file: Weights) -> None:
        """Read the file of a body into pinned memory for the load of an expert, which ends with `let_go`.

        A body that was read for another load under way is not read again. Raises StoreError, DeviceFull.
        """
        staged = _staged(pool, file.digest)
        with self._host.lock:
            is_there = (pool, file.digest) in self._bodies or self._host.copy_of(staged) is not None
            was_read = is_there and self._is_awaited(pool, file.digest)
            self._awaiting[pool, expert] = file.digest
        if not was_read:
            self._host.keep(staged, Copy(*file.content(self._host)))

    def let_go(self, pool: str, expert: str) -> None:
        """Note that a load has ended, well or not, for which a body may have been read."""
        with self._host.lock:
            digest = self._awaiting.pop((pool, expert), None)
            if digest is not None and not self._is_awaited(pool, digest):
                self._host.forget(_staged(pool, digest))

    def _is_awaited(self, pool: str, digest: str) -> bool:
        return any(place == pool and awaited == digest for (place, _), awaited in self._awaiting.items())

    @contextmanager
    def under(
        self, pool: str, digest: str, expert: Expert, structure: Structure, *, bring: bool
    ) -> Iterator[DeviceBody | None]:
        """Give the body of a digest for an expert that is put on the device in the block; None if it is "".

        A body that is not there is copied from pinned memory, or read first; it runs in `structure`. With `bring` it
        stays for all experts of the pool, unless the block fails. Raises StoreError, DeviceFull, DeviceLost.
        """
        key = pool, digest
        present = self._bodies.get(key)
        if present is not None or not digest:
            yield present
            return
        brought = self._copied(pool, digest, expert, structure, is_private=not bring)
        try:
            yield brought
        except BaseException:
            self._memory.drop(brought.resident)
            raise
        if bring:
            self._bodies[key] = brought

    def pop(self, pool: str, digest: str) -> DeviceBody | None:
        """Return a body, which leaves; None if it is not there."""
        return self._bodies.pop((pool, digest), None)

    def _copied(self, pool: str, digest: str, expert: Expert, structure: Structure, *, is_private: bool) -> DeviceBody:
        """Copy a body to the device from pinned memory, or from disk if it was not read."""
        was_read = self._host.copy_of(_staged(pool, digest))
        copy = was_read or self._read(digest, expert)
        try:
            resident = self._memory.put(f"body of {expert.id}", copy.data(), Unpacking(copy.content, structure))
            copy.buffer.busy = resident.written
            return DeviceBody(resident, copy.content, is_private)
        finally:
            if was_read is None:
                self._host.give(copy.buffer)

    def _read(self, digest: str, expert: Expert) -> Copy:
        file = weights(self._store, expert).body
        if file is None or file.digest != digest:
            raise StoreError(f"expert '{expert.id}' has another body than when it was read; open the line again")
        return Copy(*file.content(self._host))


def _staged(pool: str, digest: str) -> tuple[str, str, str]:
    """Return the name of a body in pinned memory, on its way into a pool."""
    return pool, "body", digest
