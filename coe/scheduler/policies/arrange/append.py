"""First come, first served: always at the end."""

from __future__ import annotations

from coe.scheduler.backlog import Backlog
from coe.scheduler.policies.base import Arrange


class Append(Arrange):
    """No stage overtakes another."""

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return False
