"""The device memory in which blobs lie: where each blob is, when it was written, and which executors read it last.

Only the lane's thread changes what lies where; executors read. One lock keeps an executor from reading a place while
the lane gives it away. No thread waits for the device: streams wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch

from coe.config import format_bytes
from coe.errors import DeviceFull
from coe.runtime.cuda.extents import Extent, Extents
from coe.runtime.cuda.torch_driver import TorchDriver, TorchMark, TorchStream
from coe.runtime.cuda.unpacking import Source, Unpacking

SCRATCH_BYTES = 8 << 20
"""Bytes that a blob is moved through if its old and its new place overlap."""


@dataclass(eq=False, slots=True)
class Resident:
    """A blob on the device. `written` marks when it is there; `read` marks, by executor, when it was last read.

    `body` is the blob that holds the expert's other tensors, if it has one; `sources` is what activation reads.
    """

    name: str
    extent: Extent
    size: int
    unpacking: Unpacking
    body: Resident | None = None
    written: TorchMark | None = None
    read: dict[str, TorchMark] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)


class BlobMemory:
    """`capacity` bytes of device memory, filled by `lane`."""

    def __init__(self, driver: TorchDriver, lane: TorchStream, capacity: int) -> None:
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

    def put(
        self, name: str, pieces: Sequence[torch.Tensor], unpacking: Unpacking, body: Resident | None = None
    ) -> Resident:
        """Let the lane copy a blob, pieces of (n,) uint8 on the host, and return at once.

        Raises DeviceFull, DeviceLost.
        """
        size = sum(map(len, pieces))
        with self._lock:
            extent = self._extents.take(size, self._move)
            if extent is None:
                raise DeviceFull(f"{format_bytes(size)} are more than is free in {self!r}")
            resident = self._residents[extent] = Resident(name, extent, size, unpacking, body)
            targets = self._places(resident, pieces)
            try:
                self._set_sources(resident, extent.start)
                self._lane.do(f"copy {name}", lambda: _copy(pieces, targets))
                resident.written = self._lane.mark()
            except BaseException:
                self._forget(resident)
                raise
            return resident

    def bring_down(self, resident: Resident, into: Sequence[torch.Tensor]) -> TorchMark:
        """Let the lane copy a blob into host memory, pieces of (n,) uint8; return the mark behind that copy."""
        with self._lock:
            pieces = self._places(resident, into)
            self._lane.do(f"copy {resident.name} down", lambda: _copy(pieces, into))
            return self._lane.mark()

    def drop(self, resident: Resident) -> None:
        """Free a blob's place; on the device, later writes there wait for its last reads."""
        with self._lock:
            self._await_readers(resident)
            self._forget(resident)

    def read(
        self, resident: Resident, reader: str, stream: TorchStream, work: Callable[[list[Source]], object]
    ) -> None:
        """Put work on a stream that reads a blob's sources after they were written."""
        with self._lock:
            assert resident.written is not None, f"{resident.name} was never written"
            sources = resident.sources
            stream.wait(resident.written)
            stream.do(f"activate {resident.name}", lambda: work(sources))
            resident.read[reader] = stream.mark()

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        with self._lock:
            self._extents.check()

    def _places(self, resident: Resident, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the bytes of a blob, in pieces as large as these."""
        ends = list(accumulate(map(len, pieces), initial=resident.extent.start))
        return [self._memory[start:end] for start, end in pairwise(ends)]

    def _set_sources(self, resident: Resident, start: int) -> None:
        """Make the views by which a blob is read that lies at this byte."""
        resident.sources = resident.unpacking.sources(self._memory[start : start + resident.size])

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
        self._set_sources(resident, to)
        resident.written = self._lane.mark()


def _copy(pieces: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for piece, target in zip(pieces, targets, strict=True):
        target.copy_(piece, non_blocking=True)


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
