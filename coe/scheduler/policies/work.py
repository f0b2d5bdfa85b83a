"""The work that waits for the experts of a pool, as predicted seconds, for policies that compare devices."""

from __future__ import annotations

from coe.scheduler.policies.ranking import Ranking


class WaitingWork:
    """The work that waits for the experts of a pool, in seconds; `parts` ranks the experts, the most work first."""

    def __init__(self) -> None:
        self.parts = Ranking()
        self.seconds = 0.0
        self._by_expert: dict[str, float] = {}

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
