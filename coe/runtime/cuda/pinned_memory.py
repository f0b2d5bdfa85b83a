"""Pinned host memory: all weights pass through it on their way to the device, and it keeps copies of some experts.

`coe.scheduler.host_cache` decides which copies stay; this module holds them. If the free memory is in pieces, an expert
lies in several of them, and the device gathers them: to move other experts together would hold up loads while gigabytes
are moved. The disk reader fills memory while the copy lane sends other memory to the device: `HostMemory.lock` is held
while memory is taken or sent, but not while a file is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from coe.config import format_bytes
from coe.errors import DeviceFull
from coe.runtime.cuda.extents import Extent, Extents
from coe.runtime.cuda.torch_driver import TorchDriver, TorchMark
from coe.runtime.cuda.unpacking import Unpacking
from coe.runtime.reading import Weights
from coe.store.blob_format import PAGE, Content, padded


class Pinned:
    """Lent pinned memory: runs of bytes that follow each other."""

    def __init__(self, memory: torch.Tensor, extents: Sequence[Extent]) -> None:
        self._memory, self.extents = memory, extents
        self.busy: TorchMark | None = None
        """Set while the device may still read or write the memory."""

    def __len__(self) -> int:
        return sum(extent.size for extent in self.extents)

    def pieces(self, start: int, end: int) -> list[torch.Tensor]:
        """Return the bytes from `start` to `end`, in their order: (n,) uint8 each."""
        pieces, before = [], 0
        for extent in self.extents:
            first, last = max(start - before, 0), min(end - before, extent.size)
            if first < last:
                pieces.append(self._memory[extent.start + first : extent.start + last])
            before += extent.size
        return pieces

    @contextmanager
    def part(self, start: int, end: int) -> Iterator[Sequence[memoryview]]:
        """Give a part of the bytes to write to, in pieces."""
        with ExitStack() as views:
            yield [views.enter_context(piece.numpy().data) for piece in self.pieces(start, end)]

    def wait(self) -> None:
        """Wait until the device no longer uses the memory."""
        if self.busy is not None:
            self.busy.wait()
            self.busy = None


@dataclass(slots=True)
class Copy:
    """An expert's weights in pinned memory; `unpacking` is kept with them, because to look it up takes a while.

    `body` is the digest of the body that they need, "" if they are whole.
    """

    buffer: Pinned
    content: Content
    unpacking: Unpacking | None = None
    body: str = ""

    def data(self) -> list[torch.Tensor]:
        """Return the data alone, in pieces: (n,) uint8 each."""
        return self.buffer.pieces(self.content.start, self.content.start + self.content.data_bytes)


def passing_bytes(file: Weights) -> int:
    """Return the bytes that an expert and its body take on their way to the device, each in whole pages."""
    return file.bytes if file.body is None else padded(file.bytes, PAGE) + padded(file.body.bytes, PAGE) + 2 * PAGE


class HostMemory:
    """`capacity` bytes, lent to read files into. When no other memory is left, kept copies go, the oldest first.

    Hold `lock` from taking memory, or asking for a copy, until the device's work on it is marked as `busy`: no memory
    is lent again meanwhile.
    """

    def __init__(self, driver: TorchDriver, capacity: int) -> None:
        self._memory = driver.pinned_memory(capacity)
        self._extents = Extents(capacity)
        self._leaving: list[Pinned] = []
        self._copies: OrderedDict[Hashable, Copy] = OrderedDict()
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        used, capacity = format_bytes(self._extents.used), format_bytes(self._extents.capacity)
        return f"<HostMemory {len(self._copies)} copies, {used} of {capacity}>"

    def take(self, size: int) -> Pinned:
        """Lend `size` bytes; raises DeviceFull if that exceeds the capacity, or what is not lent."""
        if size > self._extents.capacity:
            raise DeviceFull(
                f"{format_bytes(size)} do not fit into the {format_bytes(self._extents.capacity)} that all weights "
                "pass through on their way to the device; give more --host-memory"
            )
        with self.lock:
            self._leaving = [buffer for buffer in self._leaving if not self._gone(buffer)]
            while (extents := self._extents.take_scattered(size)) is None:
                if self._leaving:
                    buffer = self._leaving.pop(0)
                    buffer.wait()
                    self._drop(buffer)
                elif self._copies:
                    self.forget(next(iter(self._copies)))
                else:
                    raise DeviceFull(
                        f"{format_bytes(size)} of host memory are missing: weights on their way to the device hold "
                        f"{format_bytes(self._extents.used)} of {format_bytes(self._extents.capacity)}; give more "
                        "--host-memory"
                    )
            return Pinned(self._memory, extents)

    def give(self, buffer: Pinned) -> None:
        """Take memory back; it is lent again once the device no longer uses it."""
        with self.lock:
            self._leaving.append(buffer)

    def copy_of(self, name: Hashable) -> Copy | None:
        """Return the copy of a name, if there is one."""
        return self._copies.get(name)

    def keep(self, name: Hashable, copy: Copy) -> None:
        """Let a copy stay under a name."""
        with self.lock:
            self.forget(name)
            self._copies[name] = copy

    def pull(self, name: Hashable) -> Copy | None:
        """Return the copy of a name and forget the name; the caller keeps the copy or gives its memory back."""
        with self.lock:
            return self._copies.pop(name, None)

    def forget(self, name: Hashable) -> None:
        """Let a copy go, if there is one."""
        if (copy := self.pull(name)) is not None:
            self.give(copy.buffer)

    def _gone(self, buffer: Pinned) -> bool:
        if buffer.busy is not None and not buffer.busy.is_past():
            return False
        self._drop(buffer)
        return True

    def _drop(self, buffer: Pinned) -> None:
        for extent in buffer.extents:
            self._extents.give(extent)
