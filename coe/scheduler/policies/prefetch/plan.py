"""eMoE's loading (sections 3.3 and 3.4): the experts of the plan, by the number of images that will need them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Prefetch, World
from coe.scheduler.policies.use_plan import UsePlan


class PlanPrefetch(Prefetch):
    """First the next groups in the backlog; while nothing is loaded, the absent experts of the present plan."""

    def watch(self, world: World) -> None:
        self._plan = UsePlan(world.router)
        self._version = 0
        self._order: list[str] = []
        world.history.watch(self._plan)

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from (group.expert for group in islice(executor.backlog.groups(), config.PREFETCH_GROUPS))

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        if self._version != self._plan.version:
            self._version, self._order = self._plan.version, self._plan.in_order()
        yield from (expert for expert in self._order if expert not in executor.pool)
