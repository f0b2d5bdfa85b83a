"""Copies of experts in host memory, between the disk and the devices, as a book of bytes: the last used stay.

Samba-CoE uses the memory of the host so (paper section 5.1). What is read from disk passes through and stays until
room is needed. The cache moves nothing and waits for nobody.
"""

from __future__ import annotations

from collections import OrderedDict

from coe.config import format_bytes
from coe.costs import Tier
from coe.plan import CacheSpec


class HostCache:
    """A byte budget over copies, the least recently read leaving first."""

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

    def fill(self, expert: str, size: int) -> bool:
        """Keep a copy if there is room for it without another leaving; return whether there is."""
        if expert in self._bytes or self._used_bytes + size > self.spec.capacity_bytes:
            return False
        self._bytes[expert] = size
        self._used_bytes += size
        return True

    def fetch(self, expert: str, size: int) -> Tier:
        """Return where an expert is to be read from, and keep a copy of it, if need be in the place of others."""
        if expert in self._bytes:
            self._bytes.move_to_end(expert)
            return Tier.HOST
        if size <= self.spec.capacity_bytes:
            while not self.fill(expert, size):
                self.forget(next(iter(self._bytes)))
        return Tier.DISK

    def forget(self, expert: str) -> None:
        """Drop a copy, if there is one."""
        self._used_bytes -= self._bytes.pop(expert, 0)

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        assert sum(self._bytes.values()) == self._used_bytes <= self.spec.capacity_bytes, f"{self!r} miscounts"
