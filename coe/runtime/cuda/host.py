"""Pinned host memory: all weights pass through it on their way to the device, and it keeps copies of some experts.

Used by the lane's thread alone. `coe.scheduler.host_cache` decides which copies stay; this module holds them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from coe.config import format_bytes
from coe.errors import DeviceFull
from coe.runtime.blob import Content
from coe.runtime.cuda.driver import Driver, StreamMark
from coe.runtime.cuda.extents import Extent, Extents
from coe.runtime.cuda.recipe import Recipe


class Pinned:
    """A lent run of pinned memory."""

    def __init__(self, memory: torch.Tensor, extent: Extent) -> None:
        self._memory, self.extent = memory, extent
        self.busy: StreamMark | None = None
        """Set while the device may still read or write the memory."""

    def __len__(self) -> int:
        return self.extent.size

    def tensor(self, start: int = 0) -> torch.Tensor:
        """Return the bytes from `start` on, (n,) uint8, where they lie now: taking other memory may move them."""
        return self._memory[self.extent.start + start : self.extent.start + self.extent.size]

    def bytes(self) -> memoryview:
        """Return the bytes to write to; release the view when done."""
        return self.tensor().numpy().data

    def wait(self) -> None:
        """Wait until the device no longer uses the memory."""
        if self.busy is not None:
            self.busy.wait()
            self.busy = None


@dataclass(slots=True)
class Copy:
    """An expert's weights in pinned memory; `recipe` is kept with them, because to look it up takes a while."""

    buffer: Pinned
    content: Content
    recipe: Recipe | None = None

    def data(self) -> torch.Tensor:
        """Return the data alone, (n,) uint8."""
        return self.buffer.tensor(self.content.start)[: self.content.data_bytes]


class HostMemory:
    """`capacity` bytes, lent to read files into. When no other memory is left, kept copies go, the oldest first."""

    def __init__(self, driver: Driver, capacity: int) -> None:
        self._memory = driver.pinned_memory(capacity)
        self._extents = Extents(capacity)
        self._lent: list[Pinned] = []
        self._leaving: list[Pinned] = []
        self._copies: OrderedDict[str, Copy] = OrderedDict()

    def __repr__(self) -> str:
        used, capacity = format_bytes(self._extents.used), format_bytes(self._extents.capacity)
        return f"<HostMemory {len(self._copies)} copies, {used} of {capacity}>"

    def take(self, size: int) -> Pinned:
        """Lend `size` bytes; raises DeviceFull if that exceeds the capacity."""
        if size > self._extents.capacity:
            raise DeviceFull(
                f"{format_bytes(size)} do not fit into the {format_bytes(self._extents.capacity)} that all weights "
                "pass through on their way to the device; give more --host-memory"
            )
        self._leaving = [buffer for buffer in self._leaving if not self._gone(buffer)]
        while (extent := self._extents.take(size, self._move)) is None:
            if self._leaving:
                buffer = self._leaving.pop(0)
                buffer.wait()
                self._drop(buffer)
            else:
                self.forget(next(iter(self._copies)))
        self._lent.append(Pinned(self._memory, extent))
        return self._lent[-1]

    def give(self, buffer: Pinned) -> None:
        """Take a run back; it is lent again once the device no longer uses it."""
        self._leaving.append(buffer)

    def copy_of(self, expert: str) -> Copy | None:
        """Return the copy of an expert, if there is one."""
        return self._copies.get(expert)

    def keep(self, expert: str, copy: Copy) -> None:
        """Let a copy stay."""
        self.forget(expert)
        self._copies[expert] = copy

    def forget(self, expert: str) -> None:
        """Let a copy go, if there is one."""
        if (copy := self._copies.pop(expert, None)) is not None:
            self.give(copy.buffer)

    def _gone(self, buffer: Pinned) -> bool:
        if buffer.busy is not None and not buffer.busy.is_past():
            return False
        self._drop(buffer)
        return True

    def _drop(self, buffer: Pinned) -> None:
        self._lent.remove(buffer)
        self._extents.give(buffer.extent)

    def _move(self, extent: Extent, to: int) -> None:
        # The device may still read this run, or the bytes at the lower address, for copies that are under way.
        for buffer in self._lent:
            buffer.wait()
        source, target = (self._memory.numpy()[start : start + extent.size] for start in (extent.start, to))
        target[:] = source
