"""All that waits for an expert is one group; that none waits for ever is seen to where groups are selected."""

from __future__ import annotations

from coe.scheduler.backlog import Backlog
from coe.scheduler.policies.base import Arrange, Need


class Together(Arrange):
    """Behind the last stage of the same expert, however long its group has been running."""

    needs = frozenset({Need.DUE_FIRST})

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return True
