"""Copies of experts in host memory, between the disk and the devices, as a book of bytes.

Samba-CoE reads through the cache (paper section 5.1): an expert read from disk stays until room is needed, the last
read longest. A cache that demotes holds the experts that the devices do not hold: an expert that leaves a device goes
down into it and stays longest, and the copy of an expert on a device goes first. While the disk is idle, room that is
left takes experts that no device holds. The book itself copies nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coe.config import format_bytes
from coe.scheduler.costs import Tier
from coe.scheduler.plan import CacheSpec


@dataclass(frozen=True, slots=True)
class Passage:
    """The source of an expert's weights, whether a copy stays in host memory, and whose copies are dropped for it."""

    source: Tier
    keep_copy: bool = False
    drops: tuple[str, ...] = ()


class HostCache:
    """A byte budget over copies in an order; the first copy leaves first."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        # Ordered: a plain dict whose front is deleted over and over takes ever longer to find its first key.
        self._bytes: OrderedDict[str, int] = OrderedDict()
        self._used_bytes = 0
        self._coming: str | None = None
        # By expert: loads under way that were told where its weights lie, or that they leave a copy.
        self._going_up: Counter[str] = Counter()
        self._changed: Callable[[str], None] = lambda expert: None

    def __repr__(self) -> str:
        used, capacity = format_bytes(self._used_bytes), format_bytes(self.spec.capacity_bytes)
        return f"<HostCache {len(self)} copies, {used} of {capacity}>"

    def __len__(self) -> int:
        return len(self._bytes)

    def __contains__(self, expert: object) -> bool:
        return expert in self._bytes

    def tell(self, changed: Callable[[str], None]) -> None:
        """Tell of each expert whose copy comes or goes from now on."""
        self._changed = changed

    def serves(self, device: str) -> bool:
        """Return whether a device lies behind this cache."""
        return self.spec.devices is None or device in self.spec.devices

    def is_filling(self) -> bool:
        """Return whether a copy is being read."""
        return self._coming is not None

    def begin_fill(self, expert: str, size: int) -> bool:
        """Reserve the bytes of a copy that is to be read, if it fits without dropping another; return whether it does.

        Until `end_fill` no other expert takes its place. Likelier experts come first, so in a cache that demotes this
        copy leaves before them.
        """
        if not self.hold(expert, size):
            return False
        if self.spec.demotes:
            self._bytes.move_to_end(expert, last=False)
        self._coming = expert
        return True

    def end_fill(self) -> None:
        """Note that the copy that was being read is there, or was given up with `forget`."""
        self._coming = None

    def hold(self, expert: str, size: int) -> bool:
        """Keep a copy if it fits without dropping another; return whether it was added."""
        if expert in self._bytes or self._used_bytes + size > self.spec.capacity_bytes:
            return False
        self._bytes[expert] = size
        self._used_bytes += size
        self._changed(expert)
        return True

    def fetch(self, expert: str, size: int) -> Passage:
        """Return how an expert comes up to a device. Until `landed` its copy, if any, is not dropped."""
        self._going_up[expert] += 1
        if expert in self._bytes:
            # A demoting cache drops it first: once it is on a device, other copies are more useful.
            self._bytes.move_to_end(expert, last=not self.spec.demotes)
            return Passage(Tier.HOST)
        if not self.spec.demotes:
            return self._kept(Tier.DISK, expert, size)
        if kept := self.hold(expert, size):
            self._bytes.move_to_end(expert, last=False)
        return Passage(Tier.DISK, kept)

    def landed(self, expert: str) -> None:
        """Note that a load that asked `fetch` has ended, well or not."""
        self._going_up[expert] -= 1
        if not self._going_up[expert]:
            del self._going_up[expert]

    def leave(self, expert: str, size: int, wanted: str | None = None) -> Passage:
        """Return how an expert leaves a device: with `keep_copy` it is copied from there into host memory.

        The copy of the expert that is `wanted` in its place stays.
        """
        if not self.spec.demotes:
            return Passage(Tier.DISK)
        if expert in self._bytes:
            self._bytes.move_to_end(expert)
            return Passage(Tier.HOST)
        return self._kept(Tier.HOST, expert, size, wanted)

    def release(self, unneeded: Iterable[str]) -> None:
        """Let the copies of these experts leave before all others."""
        for expert in unneeded:
            if expert in self._bytes:
                self._bytes.move_to_end(expert, last=False)

    def copies(self) -> tuple[str, ...]:
        """Return the experts that have a copy, the first to leave first."""
        return tuple(self._bytes)

    def forget(self, expert: str) -> None:
        """Drop a copy, if there is one."""
        self._used_bytes -= self._bytes.pop(expert, 0)
        self._changed(expert)

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; with `idle`, also that nothing is on its way. Raises AssertionError."""
        assert all(count > 0 for count in self._going_up.values()), f"{self!r} miscounts loads"
        assert not idle or not self._going_up, f"{self!r} at idle: loads of {', '.join(self._going_up)}"
        assert sum(self._bytes.values()) == self._used_bytes <= self.spec.capacity_bytes, f"{self!r} miscounts"

    def _kept(self, source: Tier, expert: str, size: int, wanted: str | None = None) -> Passage:
        """Keep a copy, dropping others but never that of `wanted`; an expert that is too large is not kept."""
        # The copy that is being read is not there yet, so it cannot be dropped; and a load that was told of a copy must
        # find it, or it would read the disk on the thread that copies.
        stay = {copy for copy in (wanted, self._coming, *self._going_up) if copy in self._bytes}
        if size > self.spec.capacity_bytes - sum(self._bytes[copy] for copy in stay if copy is not None):
            return Passage(source)
        drops: list[str] = []
        while not self.hold(expert, size):
            drops.append(next(copy for copy in self._bytes if copy not in stay))
            self.forget(drops[-1])
        return Passage(source, True, tuple(drops))
