"""First come, first served: always at the end."""

from __future__ import annotations

from coe.scheduler.policies.base import Arrange, BacklogView


class Append(Arrange):
    """Nobody is overtaken."""

    def joins(self, expert: str, backlog: BacklogView, now: float) -> bool:
        return False
