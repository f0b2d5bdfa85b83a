"""By next use: the expert that is cheapest to give up leaves first, in seconds lost for each byte freed."""

from __future__ import annotations

from collections.abc import Iterator

from coe import config
from coe.scheduler.events import Why
from coe.scheduler.policies.base import Eviction, Need, World
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool


class NextUse(Eviction):
    """Giving up an expert costs the loads that bring it back, and the time in which its open stages run.

    It must come back for stages that are on their way to it through its predecessors, and for images that are likely to
    need it. An expert stays while stages wait for it, and so do all that cost more: an executor runs those stages
    first. But it leaves for an expert whose stages are due earlier. An expert with a copy in host memory comes back
    sooner than from the disk, and so leaves sooner.
    """

    needs = frozenset({Need.SHARED_BACKLOG, Need.RESIDENT_FIRST})

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._world = pool, world
        self._changed = world.demand.subscribe()
        (self._backlog,) = world.backlogs()
        self._order = Ranking()

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        for expert in self._changed:
            if expert in self._pool:
                self._order.put(expert, self._loss_s(expert) / max(1, self._pool.size(expert)))
            else:
                self._order.drop(expert)
        self._changed.clear()
        return iter(self._order)

    def spares(self, expert: str, newcomer: str, why: Why) -> bool:
        waiting, wanting = self._backlog.first(expert), self._backlog.first(newcomer)
        return waiting is not None and (wanting is None or wanting.due_s >= waiting.due_s)

    def _loss_s(self, expert: str) -> float:
        demand, cost = self._world.demand, self._world.costs(self._pool.device, expert)
        expected = demand.coming(expert) + config.OUTLOOK_IMAGES * demand.usage(expert)
        return expected * self._world.switch_s(self._pool.device, expert) + demand.open(expert) * cost.per_image_s
