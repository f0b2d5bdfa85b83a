"""Copies of experts in host memory, between the disk and the devices, as a book of bytes.

Samba-CoE reads through it (paper section 5.1): what is read from disk stays until room is needed, the last read
longest. A cache that demotes holds what the devices do not: who leaves a device goes down into it and stays longest,
and the copy of who is on a device goes first. The book moves nothing and waits for nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from coe.config import format_bytes
from coe.scheduler.costs import Tier
from coe.scheduler.plan import CacheSpec


@dataclass(frozen=True, slots=True)
class Passage:
    """Where an expert is read from, whether a copy stays in host memory, and whose copies go for it."""

    source: Tier
    keep: bool = False
    drops: tuple[str, ...] = ()


class HostCache:
    """A byte budget over copies; who is first in line leaves first."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        # Ordered: a plain dict whose front is deleted over and over takes ever longer to find its first key.
        self._bytes: OrderedDict[str, int] = OrderedDict()
        self._used_bytes = 0

    def __repr__(self) -> str:
        used, capacity = format_bytes(self._used_bytes), format_bytes(self.spec.capacity_bytes)
        return f"<HostCache {len(self)} copies, {used} of {capacity}>"

    def __len__(self) -> int:
        return len(self._bytes)

    def __contains__(self, expert: object) -> bool:
        return expert in self._bytes

    def serves(self, device: str) -> bool:
        """Return whether a device lies behind this cache."""
        return self.spec.devices is None or device in self.spec.devices

    def fill(self, expert: str, size: int) -> bool:
        """Keep a copy if there is room for it without another leaving; return whether there is."""
        if expert in self._bytes or self._used_bytes + size > self.spec.capacity_bytes:
            return False
        self._bytes[expert] = size
        self._used_bytes += size
        return True

    def fetch(self, expert: str, size: int) -> Passage:
        """Return how an expert comes up to a device."""
        if expert in self._bytes:
            # Once it is on a device, others need the room of a copy more.
            self._bytes.move_to_end(expert, last=not self.spec.demotes)
            return Passage(Tier.HOST)
        if not self.spec.demotes:
            return self._kept(Tier.DISK, expert, size)
        if kept := self.fill(expert, size):
            self._bytes.move_to_end(expert, last=False)
        return Passage(Tier.DISK, kept)

    def leave(self, expert: str, size: int, wanted: str | None = None) -> Passage:
        """Return how an expert goes down from a device: if it is kept, from there into host memory.

        It does not drive out the copy of the one that is `wanted` in its place.
        """
        if not self.spec.demotes:
            return Passage(Tier.DISK)
        if expert in self._bytes:
            self._bytes.move_to_end(expert)
            return Passage(Tier.HOST)
        return self._kept(Tier.HOST, expert, size, wanted)

    def forget(self, expert: str) -> None:
        """Drop a copy, if there is one."""
        self._used_bytes -= self._bytes.pop(expert, 0)

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        assert sum(self._bytes.values()) == self._used_bytes <= self.spec.capacity_bytes, f"{self!r} miscounts"

    def _kept(self, source: Tier, expert: str, size: int, stays: str | None = None) -> Passage:
        """Keep a copy, if need be in the place of others but the one that stays; what is too large passes by."""
        if size > self.spec.capacity_bytes - (self._bytes.get(stays, 0) if stays else 0):
            return Passage(source)
        drops: list[str] = []
        while not self.fill(expert, size):
            drops.append(next(one for one in self._bytes if one != stays))
            self.forget(drops[-1])
        return Passage(source, True, tuple(drops))
