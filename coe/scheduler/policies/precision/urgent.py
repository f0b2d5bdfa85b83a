"""Low precision only where it is urgent: while several experts are waited for, or a stage is in a hurry.

Where it was urgent the expert is upgraded once the disk is idle.
"""

from __future__ import annotations

import math

from coe.scheduler.events import Why
from coe.scheduler.policies.base import Precision, World
from coe.scheduler.pool import ModelPool


class Urgent(Precision):
    """The coarsest variant if stages wait for another absent expert too, or if its stages are in a hurry.

    An expert that is waited for alone holds up nobody else, so it is loaded in full precision: then none of its
    findings needs a second look.
    """

    def watch(self, world: World) -> None:
        super().watch(world)
        self._changed = world.demand.subscribe()
        self._backlogs = world.backlogs()
        self._absent: set[str] = set()

    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        self._catch_up()
        variants = self.world.costs.variants(expert)
        alone = not self._absent - {expert}
        if why is Why.INITIAL or (alone and not self._is_hurried(expert)):
            return variants[0]
        # Once the disk is idle nothing is waited for, so an upgrade never comes here.
        return variants[-1]

    def _is_hurried(self, expert: str) -> bool:
        groups = (backlog.first(expert) for backlog in self._backlogs)
        return any(group.due_s < math.inf for group in groups if group is not None)

    def _catch_up(self) -> None:
        pools = [executor.pool for executor in self.world.executors.values()]
        for expert in self._changed:
            waits = any(backlog.waiting(expert) for backlog in self._backlogs)
            if waits and not any(expert in pool for pool in pools):
                self._absent.add(expert)
            else:
                self._absent.discard(expert)
        self._changed.clear()
