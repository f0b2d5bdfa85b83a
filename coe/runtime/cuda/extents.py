"""Memory that is handed out in runs of any size. Runs are moved together when free memory is in pieces.

So a run can be taken exactly when enough bytes are free: ten thousand switches leave the memory as usable as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coe.store.blob_format import PAGE, padded


@dataclass(eq=False, slots=True)
class Extent:
    """A run of bytes; it may be moved, so read `start` at each use."""

    start: int
    size: int


class Extents:
    """Where runs lie in a memory of `capacity` bytes. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // PAGE * PAGE
        self._taken: list[Extent] = []
        self.used = 0

    def __repr__(self) -> str:
        return f"<Extents {len(self._taken)} in {self.used:,} of {self.capacity:,} bytes>"

    @property
    def free(self) -> int:
        """Bytes that can be taken."""
        return self.capacity - self.used

    def take(self, size: int, move: Callable[[Extent, int], None]) -> Extent | None:
        """Hand out `size` bytes, rounded up to whole pages, at a page; return None if too few bytes are free.

        If the free bytes are in pieces, `move(extent, to)` is called to move the bytes of runs to lower addresses.
        """
        size = padded(max(1, size), PAGE)
        if size > self.free:
            return None
        place = self._gap(size)
        if place is None:
            self._move_together(move)
            place = len(self._taken)
        start = self._taken[place - 1].start + self._taken[place - 1].size if place else 0
        extent = Extent(start, size)
        self._taken.insert(place, extent)
        self.used += size
        return extent

    def give(self, extent: Extent) -> None:
        """Take a run back."""
        self._taken.remove(extent)
        self.used -= extent.size

    def _gap(self, size: int) -> int | None:
        """Return the index of the run behind the first gap that is large enough; None if there is no such gap."""
        end = 0
        for place, extent in enumerate(self._taken):
            if extent.start - end >= size:
                return place
            end = extent.start + extent.size
        return len(self._taken) if self.capacity - end >= size else None

    def _move_together(self, move: Callable[[Extent, int], None]) -> None:
        end = 0
        for extent in self._taken:
            if extent.start != end:
                move(extent, end)
                extent.start = end
            end += extent.size

    def check(self) -> None:
        """Prove that runs lie in order, without overlap, inside the memory; raises AssertionError."""
        end = 0
        for extent in self._taken:
            assert extent.start >= end, f"{self!r}: runs overlap"
            end = extent.start + extent.size
        assert end <= self.capacity, f"{self!r}: a run ends beyond the memory"
        assert sum(extent.size for extent in self._taken) == self.used, f"{self!r} miscounts"
