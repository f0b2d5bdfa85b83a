"""eMoE's residents (section 3.2.2): experts that are not in the plan leave first, then those that few images need."""

from __future__ import annotations

from collections.abc import Iterator

from coe.scheduler.events import Why
from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.policies.use_plan import UsePlan
from coe.scheduler.pool import ModelPool


class PlanEviction(Eviction):
    """Ranks by the number of images that are expected to need an expert, then by usage probability."""

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._graph = pool, world.graph
        self._plan = UsePlan(world.router)
        self._version = 0
        self._order = Ranking()
        world.history.watch(self._plan)

    def entered(self, expert: str) -> None:
        self._place(expert)

    def left(self, expert: str) -> None:
        self._order.drop(expert)

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        if self._version != self._plan.version:
            self._version = self._plan.version
            for expert in list(self._order):
                self._place(expert)
        return iter(self._order)

    def stays(self, expert: str, newcomer: str, why: Why) -> bool:
        return why is Why.SPECULATIVE and self._plan.expected(expert) >= self._plan.expected(newcomer)

    def _place(self, expert: str) -> None:
        self._order.put(expert, self._plan.expected(expert), self._graph.probability(expert))
