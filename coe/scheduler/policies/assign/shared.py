"""Late binding: nobody is chosen when a stage comes; all executors take from one backlog."""

from __future__ import annotations

from coe.scheduler.policies.base import Assign, Need, World


class Shared(Assign):
    """Any executor stands for all: their backlog is the same."""

    gives = frozenset({Need.SHARED_BACKLOG})

    def choose(self, expert: str, world: World, now: float) -> str:
        return next(iter(world.executors))
