"""What waits for the experts of a pool, as predicted seconds, for policies that compare devices."""

from __future__ import annotations

from sortedcontainers import SortedDict


class Work:
    """What waits for experts of a pool, in seconds; `parts` has the largest first."""

    def __init__(self) -> None:
        self.parts: SortedDict[tuple[float, str], float] = SortedDict()
        self.seconds = 0.0
        self._own: dict[str, float] = {}

    def put(self, expert: str, seconds: float) -> None:
        """Note what waits for an expert that was not noted before."""
        self._own[expert] = seconds
        self.parts[-seconds, expert] = seconds
        self.seconds += seconds

    def drop(self, expert: str) -> None:
        """Forget what waits for an expert, if it was noted."""
        if (seconds := self._own.pop(expert, None)) is not None:
            del self.parts[-seconds, expert]
            self.seconds = self.seconds - seconds if self._own else 0.0
