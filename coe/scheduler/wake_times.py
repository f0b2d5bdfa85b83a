"""Things that are to be looked at again, each at one time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Generic, TypeVar

_SPARE = 8
"""So many entries are kept beside twice as many as there are things: to sort a few again and again would cost more."""

T = TypeVar("T", bound=Hashable)


class WakeTimes(Generic[T]):
    """The earliest time, in seconds, that was asked for each thing; things of one time wake as they were asked for."""

    def __init__(self) -> None:
        self._times_s: dict[T, float] = {}
        # Later entries of a thing, and those of forgotten things, are passed over.
        self._entries: list[tuple[float, int, T]] = []
        self._ties = count()
        self.next_s = math.inf
        """No thing wakes before this time."""

    def __len__(self) -> int:
        return len(self._entries)

    def wake(self, thing: T, time_s: float) -> None:
        """Wake a thing at this time, or earlier if that was asked for."""
        if time_s < self._times_s.get(thing, math.inf):
            self._times_s[thing] = time_s
            heapq.heappush(self._entries, (time_s, next(self._ties), thing))
            self.next_s = self._entries[0][0]

    def due(self, now: float) -> Iterator[T]:
        """Yield the things whose time has come, the earliest first; each wakes once, unless it is asked for again."""
        while self._entries and self._entries[0][0] <= now:
            time_s, _, thing = heapq.heappop(self._entries)
            self.next_s = self._entries[0][0] if self._entries else math.inf
            if self._times_s.get(thing) == time_s:
                del self._times_s[thing]
                yield thing

    def forget(self, thing: T) -> None:
        """Wake a thing no more. Entries to pass over go once they are the majority: they may be due in a day."""
        self._times_s.pop(thing, None)
        if len(self._entries) > 2 * len(self._times_s) + _SPARE:
            self._entries = sorted(entry for entry in self._entries if self._times_s.get(entry[2]) == entry[0])
