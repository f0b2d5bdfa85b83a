"""Experts in the order of a key that changes as events come."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from sortedcontainers import SortedList

_expert = itemgetter(2)


class Ranking:
    """Experts, the least key first; ties in the order of names.

    Policies keep it that rank often while few keys change.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, float, str]] = {}
        self._order: SortedList[tuple[float, float, str]] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return map(_expert, self._order)

    def entries(self) -> Iterator[tuple[float, float, str]]:
        """Yield key, what decides between equal keys, and expert, in order."""
        return iter(self._order)

    def key(self, expert: str) -> float | None:
        """Return the key of an expert; None if it is not known."""
        entry = self._entries.get(expert)
        return None if entry is None else entry[0]

    def put(self, expert: str, key: float, then: float = 0.0) -> None:
        """Place an expert, or move it; `then` decides between equal keys."""
        entry = (key, then, expert)
        if self._entries.get(expert) != entry:
            self.drop(expert)
            self._entries[expert] = entry
            self._order.add(entry)

    def drop(self, expert: str) -> None:
        """Forget an expert, if it is known."""
        if (entry := self._entries.pop(expert, None)) is not None:
            self._order.remove(entry)


class WaitingWork:
    """The work that waits for the experts of a pool, in seconds; `parts` ranks the experts, the most work first."""

    def __init__(self) -> None:
        self.parts = Ranking()
        self.seconds = 0.0
        self._by_expert: dict[str, float] = {}

    def of(self, expert: str) -> float:
        """Return the work that waits for an expert, in seconds."""
        return self._by_expert.get(expert, 0.0)

    def put(self, expert: str, seconds: float) -> None:
        """Set the work that waits for an expert."""
        self.drop(expert)
        self._by_expert[expert] = seconds
        self.parts.put(expert, -seconds)
        self.seconds += seconds

    def drop(self, expert: str) -> None:
        """Forget the work that waits for an expert, if there is any."""
        if (seconds := self._by_expert.pop(expert, None)) is not None:
            self.parts.drop(expert)
            # Rounding must not pile up over weeks of stages.
            self.seconds = self.seconds - seconds if self._by_expert else 0.0
