"""Costs that were measured in this process. Law: one measuring at a time, and nothing is measured twice.

What a batch holds is read off the process, so two measurings at once would see each other; and lines of one board that
are opened together need one measuring only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from coe.scheduler.costs import Cost

_MOST = 4096
"""So many costs are remembered; a service that brings ever new experts must not grow for ever."""


class Measured:
    """Costs by what was measured."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs: dict[Hashable, Cost] = {}

    def __repr__(self) -> str:
        return f"<Measured {len(self._costs)} costs>"

    def alone(self, measure: Callable[[], Cost]) -> Cost:
        """Return what `measure` returns; while it works, no other measuring does."""
        with self._lock:
            return measure()

    def cost(self, key: Hashable, measure: Callable[[], Cost]) -> Cost:
        """Return the cost that is known under `key`, else measure it, alone. An error is raised and not remembered."""
        with self._lock:
            if key not in self._costs:
                while len(self._costs) >= _MOST:
                    del self._costs[next(iter(self._costs))]
                self._costs[key] = measure()
            return self._costs[key]


HERE = Measured()
"""Those of this process, for all devices: it is the process that is looked at."""
