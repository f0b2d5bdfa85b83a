"""Places for requests that wait for events: neither one key nor all together take the connections of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from coe.serve.database.keys import Key
from coe.serve.gate.problems import Problem, ProblemKind


class WaitingPlaces:
    """`most` requests wait at a time, half of them for one key; used by one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[int] = Counter()

    @contextmanager
    def taken(self, key: Key | None) -> Iterator[None]:
        """Take a place for the holder of a key; raises Problem if there is none."""
        id = key.id if key else 0
        if self._taken[id] >= self.most // 2 or self._taken.total() >= self.most:
            raise Problem(
                ProblemKind.TOO_MANY,
                f"{self._taken[id]:,} requests of this key and {self._taken.total():,} in all wait for events",
                "close some of them, or share one stream among many readers",
                {"Connection": "close"},
            )
        self._taken[id] += 1
        try:
            yield
        finally:
            self._taken[id] -= 1
