"""Late binding: a new stage is not assigned to an executor; all executors take from one backlog."""

from __future__ import annotations

from coe.scheduler.policies.base import Assign, Need, World


class Shared(Assign):
    """Returns any executor, because all of them have the same backlog."""

    gives = frozenset({Need.SHARED_BACKLOG})

    def choose(self, expert: str, world: World, now: float) -> str:
        return next(iter(world.executors))
