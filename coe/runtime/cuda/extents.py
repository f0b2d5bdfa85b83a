"""Memory that is handed out in runs of any size, exactly when enough bytes are free.

If the free bytes are in pieces, either other runs are moved out of the way, so that one run holds all bytes, or the
bytes are handed out in several runs. So ten thousand switches leave the memory as usable as before. To move runs takes
time, and a line waits for it, so runs go into the smallest gap that holds them, and few bytes move.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

from coe.store.blob_format import PAGE, padded


@dataclass(eq=False, slots=True)
class Extent:
    """A run of bytes; it may be moved, so read `start` at each use."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Gap:
    """Free bytes; `before` is how many runs lie before them."""

    before: int
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
        """Hand out `size` bytes as one run, rounded up to whole pages, at a page; return None if too few are free.

        If the free bytes are in pieces, `move(extent, to)` is called to move the bytes of runs: to free bytes, or to
        lower addresses that may overlap the run.
        """
        size = padded(max(1, size), PAGE)
        if size > self.free:
            return None
        if (gap := self._smallest(size)) is None:
            self._make_gap(size, self._gaps(), move)
            gap = self._smallest(size)
        assert gap is not None, f"no gap in {self!r} holds {size:,} bytes"
        return self._take_in(gap, size)

    def take_scattered(self, size: int) -> list[Extent] | None:
        """Hand out `size` bytes as few runs, rounded up to whole pages, at pages; return None if too few are free."""
        size = padded(max(1, size), PAGE)
        if size > self.free:
            return None
        gaps, extents = sorted(self._gaps(), key=lambda gap: gap.size), []
        while size:
            # The smallest gap that holds the rest, else the largest.
            gap = gaps.pop(min(bisect_left(gaps, size, key=lambda gap: gap.size), len(gaps) - 1))
            extents.append(self._take_in(gap, min(size, gap.size)))
            size -= extents[-1].size
        return extents

    def _take_in(self, gap: _Gap, size: int) -> Extent:
        extent = Extent(gap.start, size)
        insort(self._taken, extent, key=lambda extent: extent.start)
        self.used += size
        return extent

    def give(self, extent: Extent) -> None:
        """Take a run back."""
        self._taken.remove(extent)
        self.used -= extent.size

    def _smallest(self, size: int) -> _Gap | None:
        """Return the smallest gap of at least `size` bytes, if there is one."""
        return min((gap for gap in self._gaps() if gap.size >= size), key=lambda gap: gap.size, default=None)

    def _gaps(self) -> list[_Gap]:
        """Return all free bytes in order."""
        ends = [0, *(extent.start + extent.size for extent in self._taken)]
        starts = [*(extent.start for extent in self._taken), self.capacity]
        return [
            _Gap(before, end, start - end)
            for before, (end, start) in enumerate(zip(ends, starts, strict=True))
            if start > end
        ]

    def _make_gap(self, size: int, gaps: list[_Gap], move: Callable[[Extent, int], None]) -> None:
        """Move the runs between gaps together, or runs into other gaps, whichever moves fewer bytes."""
        first, last = self._cheapest_slide(size, gaps)
        most = sum(extent.size for extent in self._taken[first.before : last.before])
        if places := self._elsewhere(size, gaps, most):
            try:
                for extent, to in places:
                    move(extent, to)
                    extent.start = to
            finally:
                self._taken.sort(key=lambda extent: extent.start)
            return
        end = first.start
        for extent in self._taken[first.before : last.before]:
            move(extent, end)
            extent.start = end
            end += extent.size

    def _cheapest_slide(self, size: int, gaps: list[_Gap]) -> tuple[_Gap, _Gap]:
        """Return two gaps that, with those between them, have `size` bytes, and between which the fewest bytes lie."""
        pairs, last, free = [], 0, 0
        for first, gap in enumerate(gaps):
            while free < size and last < len(gaps):
                free += gaps[last].size
                last += 1
            if free < size:
                break
            pairs.append((gaps[last - 1].start - gap.start - (free - gaps[last - 1].size), first, last - 1))
            free -= gap.size
        _, first, last = min(pairs)
        return gaps[first], gaps[last]

    def _elsewhere(self, size: int, gaps: list[_Gap], most: int) -> list[tuple[Extent, int]]:
        """Return which runs go where to make a gap of `size` bytes by moving fewer than `most`, if that is possible."""
        windows = []
        for first in range(len(self._taken)):
            start = self._taken[first - 1].start + self._taken[first - 1].size if first else 0
            last = first + bisect_left(self._taken[first:], start + size, key=lambda extent: extent.start)
            if (self._taken[last].start if last < len(self._taken) else self.capacity) - start >= size:
                windows.append((sum(extent.size for extent in self._taken[first:last]), first, last))
        for moved, first, last in sorted(windows):
            if moved >= most:
                break
            others = [(gap.size, gap.start) for gap in gaps if not first <= gap.before <= last]
            if places := _fitted(self._taken[first:last], sorted(others)):
                return places
        return []

    def check(self) -> None:
        """Prove that runs lie in order, without overlap, inside the memory; raises AssertionError."""
        end = 0
        for extent in self._taken:
            assert extent.start >= end, f"{self!r}: runs overlap"
            end = extent.start + extent.size
        assert end <= self.capacity, f"{self!r}: a run ends beyond the memory"
        assert sum(extent.size for extent in self._taken) == self.used, f"{self!r} miscounts"


def _fitted(extents: list[Extent], gaps: list[tuple[int, int]]) -> list[tuple[Extent, int]]:
    """Return a place for each run, in the smallest of the gaps (size, start) that holds it, or none at all."""
    places = []
    for extent in sorted(extents, key=lambda extent: -extent.size):
        if (which := bisect_left(gaps, (extent.size, 0))) == len(gaps):
            return []
        room, start = gaps.pop(which)
        places.append((extent, start))
        if room > extent.size:
            insort(gaps, (room - extent.size, start + extent.size))
    return places
