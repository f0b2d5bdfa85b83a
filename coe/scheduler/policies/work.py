"""What waits for the experts of a pool, as predicted seconds, for policies that compare devices."""

from __future__ import annotations

from coe.scheduler.policies.ranking import Ranking


class Work:
    """What waits for experts of a pool, in seconds; `parts` has the largest first."""

    def __init__(self) -> None:
        self.parts = Ranking()
        self.seconds = 0.0
        self._own: dict[str, float] = {}

    def put(self, expert: str, seconds: float) -> None:
        """Note what waits for an expert."""
        self.drop(expert)
        self._own[expert] = seconds
        self.parts.put(expert, -seconds)
        self.seconds += seconds

    def drop(self, expert: str) -> None:
        """Forget what waits for an expert, if it was noted."""
        if (seconds := self._own.pop(expert, None)) is not None:
            self.parts.drop(expert)
            # Rounding must not pile up over weeks of stages.
            self.seconds = self.seconds - seconds if self._own else 0.0
