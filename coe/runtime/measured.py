"""What was measured in this process. Law: one measuring at a time, and nothing is measured twice.

The memory of a batch is measured as growth of the process, so two measurings at a time would disturb each other. Lines
of one board that are opened together need only one measuring.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

from coe.scheduler.costs import Cost

_MOST = 4096
"""How many results are remembered; a service that brings ever new experts must not grow for ever."""

T = TypeVar("T")


class MeasuredOnce(Generic[T]):
    """Remembered results, by a key of all that they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[Hashable, T] = {}

    def __repr__(self) -> str:
        return f"<MeasuredOnce {len(self._results)} results>"

    def alone(self, measure: Callable[[], T]) -> T:
        """Call `measure` and return its result; no other measuring runs meanwhile."""
        with self._lock:
            return measure()

    def once(self, key: Hashable | None, measure: Callable[[], T]) -> T:
        """Return the result remembered under `key`, else measure it alone; a result without a key is not remembered.

        An error is raised and not remembered.
        """
        with self._lock:
            if key is None:
                return measure()
            if key not in self._results:
                while len(self._results) >= _MOST:
                    del self._results[next(iter(self._results))]
                self._results[key] = measure()
            return self._results[key]


def identity(path: Path) -> Hashable | None:
    """Return a key that no other file has, nor this file with earlier contents; None if it cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return path.absolute(), stat.st_ino, stat.st_mtime_ns, stat.st_size


HERE: MeasuredOnce[Cost] = MeasuredOnce()
"""The costs of this process, shared by all devices, because memory is measured by the process."""
