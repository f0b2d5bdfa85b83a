"""By next use: who is cheapest to give up, in seconds lost for each byte that is freed."""

from __future__ import annotations

from collections.abc import Iterator

from coe import config
from coe.scheduler.policies.base import Eviction, Need, World
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool


class NextUse(Eviction):
    """Giving up an expert costs the loads that bring it back and the time until what it is open for has run.

    It comes back if stages are on their way to it through its predecessors, or images that need it are likely. As long
    as stages wait for it, it stays, and so does all that is dearer: an executor sees to those stages first; but it
    leaves for one whose stages are due before.
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

    def spares(self, expert: str, newcomer: str) -> bool:
        waiting, wanting = self._backlog.first(expert), self._backlog.first(newcomer)
        return waiting is not None and (wanting is None or wanting.due_s >= waiting.due_s)

    def _loss_s(self, expert: str) -> float:
        demand, cost = self._world.demand, self._world.costs(self._pool.device, expert)
        expected = demand.coming(expert) + config.OUTLOOK_IMAGES * demand.usage(expert)
        return expected * cost.load_s + demand.open(expert) * cost.per_image_s
