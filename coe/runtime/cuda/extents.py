"""A memory that is handed out in runs of any size. What lies in the way is moved together rather than left in pieces.

So a run can be had exactly when as many bytes are free: ten thousand switches leave the memory as usable as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coe.store.blob_format import PAGE, padded


@dataclass(eq=False, slots=True)
class Extent:
    """A run of bytes; it may be moved, so ask for `start` when it is used."""

    start: int
    size: int


class Extents:
    """Where runs lie in a memory of `capacity` bytes. Not to be called from two threads at once."""

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
        """Hand out `size` bytes, rounded up to whole pages, at a page; None if so many are not free.

        Where they are free in pieces, `move(extent, to)` is called to move the bytes of runs to lower ground.
        """
        size = padded(max(1, size), PAGE)
        if size > self.free:
            return None
        place = self._gap(size)
        if place is None:
            self._move_together(move)
            place = len(self._taken)
        start = self._taken[place - 1].start + self._taken[place - 1].size if place else 0
        found = Extent(start, size)
        self._taken.insert(place, found)
        self.used += size
        return found

    def give(self, extent: Extent) -> None:
        """Take a run back."""
        self._taken.remove(extent)
        self.used -= extent.size

    def _gap(self, size: int) -> int | None:
        """Return before which run the first gap lies that is large enough."""
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
        """Prove that runs lie in order, apart, and in the memory; raises AssertionError."""
        end = 0
        for extent in self._taken:
            assert extent.start >= end, f"{self!r}: runs overlap"
            end = extent.start + extent.size
        assert end <= self.capacity, f"{self!r}: a run ends beyond the memory"
        assert sum(extent.size for extent in self._taken) == self.used, f"{self!r} miscounts"
