"""All stages of an expert are one group; the select policy must see to it that no group waits for ever."""

from __future__ import annotations

from coe.scheduler.backlog import Backlog
from coe.scheduler.policies.base import Arrange, Need


class Together(Arrange):
    """A stage joins the group of its expert, however long the group has been running."""

    needs = frozenset({Need.DUE_FIRST})

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return True
