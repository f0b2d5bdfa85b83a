"""The device memory in which blobs lie: where each blob is, when it was written, and which executors read it last.

Only the lane's thread changes what lies where; executors read. One lock keeps an executor from reading a place while
the lane gives it away. No thread waits for the device: streams wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from coe.config import format_bytes
from coe.errors import DeviceFull
from coe.runtime.cuda.driver import Driver, Stream, StreamMark
from coe.runtime.cuda.extents import Extent, Extents
from coe.runtime.cuda.unpacking import Unpacking

SCRATCH_BYTES = 8 << 20
"""Bytes that a blob is moved through if its old and its new place overlap."""


@dataclass(eq=False, slots=True)
class Resident:
    """A blob on the device. `written` marks when it is there; `read` marks, by executor, when it was last read.

    `body` is the blob that holds the expert's other tensors, if it has one.
    """

    name: str
    extent: Extent
    size: int
    unpacking: Unpacking
    body: Resident | None = None
    written: StreamMark | None = None
    read: dict[str, StreamMark] = field(default_factory=dict)


class BlobMemory:
    """`capacity` bytes of device memory, filled by `lane`."""

    def __init__(self, driver: Driver, lane: Stream, capacity: int) -> None:
        self._lane = lane
        self._memory = driver.device_memory(capacity)
        self._scratch = driver.device_memory(SCRATCH_BYTES)
        self._extents = Extents(capacity)
        self._residents: dict[Extent, Resident] = {}
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Bytes for blobs, used or free."""
        return self._extents.capacity

    def __repr__(self) -> str:
        used, capacity = format_bytes(self._extents.used), format_bytes(self._extents.capacity)
        return f"<BlobMemory {len(self._residents)} blobs, {used} of {capacity}>"

    def put(self, name: str, blob: torch.Tensor, unpacking: Unpacking, body: Resident | None = None) -> Resident:
        """Let the lane copy a blob, (n,) uint8 on the host, and return at once; raises DeviceFull, DeviceLost."""
        with self._lock:
            extent = self._extents.take(len(blob), self._move)
            if extent is None:
                raise DeviceFull(f"{format_bytes(len(blob))} are more than is free in {self!r}")
            resident = self._residents[extent] = Resident(name, extent, len(blob), unpacking, body)
            target = self._memory[extent.start : extent.start + len(blob)]
            try:
                self._lane.do(f"copy {name}", lambda: target.copy_(blob, non_blocking=True))
                resident.written = self._lane.mark()
            except BaseException:
                self._forget(resident)
                raise
            return resident

    def bring_down(self, resident: Resident, into: torch.Tensor) -> StreamMark:
        """Let the lane copy a blob into host memory, (n,) uint8; return the mark behind that copy."""
        with self._lock:
            start = resident.extent.start
            blob = self._memory[start : start + resident.size]
            self._lane.do(f"copy {resident.name} down", lambda: into.copy_(blob, non_blocking=True))
            return self._lane.mark()

    def drop(self, resident: Resident) -> None:
        """Free a blob's place; on the device, later writes there wait for its last reads."""
        with self._lock:
            self._await_readers(resident)
            self._forget(resident)

    def read(self, resident: Resident, reader: str, stream: Stream, work: Callable[[torch.Tensor], object]) -> None:
        """Put work on a stream that reads a blob's bytes, (n,) uint8, after they were written."""
        with self._lock:
            assert resident.written is not None, f"{resident.name} was never written"
            start = resident.extent.start
            blob = self._memory[start : start + resident.size]
            stream.wait(resident.written)
            stream.do(f"activate {resident.name}", lambda: work(blob))
            resident.read[reader] = stream.mark()

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        with self._lock:
            self._extents.check()

    def _forget(self, resident: Resident) -> None:
        del self._residents[resident.extent]
        self._extents.give(resident.extent)

    def _await_readers(self, resident: Resident) -> None:
        for mark in resident.read.values():
            self._lane.wait(mark)

    def _move(self, extent: Extent, to: int) -> None:
        resident = self._residents[extent]
        self._await_readers(resident)
        start, size = extent.start, extent.size
        self._lane.do(f"move {resident.name}", lambda: slide(self._memory, start, to, size, self._scratch))
        resident.written = self._lane.mark()


def slide(memory: torch.Tensor, start: int, to: int, size: int, scratch: torch.Tensor) -> None:
    """Move `size` bytes of `memory` from `start` to `to`; if the two places overlap, `to` is lower."""
    apart = abs(start - to)
    assert apart >= size or to < start, "bytes would be overwritten before they are moved"
    step = max(apart, len(scratch))
    for done in range(0, size, step):
        piece = min(step, size - done)
        source, target = memory[start + done : start + done + piece], memory[to + done : to + done + piece]
        if apart < piece:
            source = scratch[:piece].copy_(source)
        target.copy_(source)
