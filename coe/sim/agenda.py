"""What will happen, in the order of time; of two things at one time, the one that was put down first is first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from coe.core import Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives `at_s` seconds after the beginning."""

    at_s: float
    request: Request


class Agenda:
    """The virtual time of a simulation, of one box or of several; `now` is in seconds.

    `clock` measures the real time of decisions; without it they seem to take none.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.now = 0.0
        self.clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = count()

    def __repr__(self) -> str:
        return f"<Agenda at {self.now:.3f} s, {len(self._heap)} ahead>"

    def at(self, when_s: float, happen: Callable[[], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._heap, (when_s, next(self._ties), happen))

    def run(self, arrivals: Iterable[Arrival], arrive: Callable[[Request], None]) -> None:
        """Go on until nothing is left. Arrivals are taken one by one, in the order of their times, before all else."""
        coming = iter(arrivals)
        arrival = next(coming, None)
        while self._heap or arrival is not None:
            if arrival is not None and (not self._heap or arrival.at_s <= self._heap[0][0]):
                self.now = arrival.at_s
                arrive(arrival.request)
                arrival = next(coming, None)
            else:
                self.now, _, happen = heapq.heappop(self._heap)
                happen()
