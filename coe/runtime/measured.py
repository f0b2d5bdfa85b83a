"""Costs that were measured in this process. Law: one measuring at a time, and nothing is measured twice.

The memory of a batch is measured as growth of the process, so two measurings at a time would disturb each other. Lines
of one board that are opened together need only one measuring.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from coe.scheduler.costs import Cost

_MOST = 4096
"""How many costs are remembered; a service that brings ever new experts must not grow for ever."""


class MeasuredCosts:
    """Remembered costs, by a key of all that they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs: dict[Hashable, Cost] = {}

    def __repr__(self) -> str:
        return f"<MeasuredCosts {len(self._costs)} costs>"

    def alone(self, measure: Callable[[], Cost]) -> Cost:
        """Return what `measure` returns; no other measuring runs meanwhile."""
        with self._lock:
            return measure()

    def cost(self, key: Hashable, measure: Callable[[], Cost]) -> Cost:
        """Return the cost remembered under `key`, else measure it alone. An error is raised and not remembered."""
        with self._lock:
            if key not in self._costs:
                while len(self._costs) >= _MOST:
                    del self._costs[next(iter(self._costs))]
                self._costs[key] = measure()
            return self._costs[key]


HERE = MeasuredCosts()
"""The costs of this process, shared by all devices, because memory is measured by the process."""
