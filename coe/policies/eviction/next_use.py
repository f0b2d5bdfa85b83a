"""By next use: who is cheapest to give up, in seconds lost for each byte that is freed."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe import config
from coe.policies.base import Eviction, PoolView, World

Key = tuple[float, str]


class NextUse(Eviction):
    """Giving up an expert costs the loads that bring it back and the time until what it is open for has run.

    It comes back if stages are on their way to it through its predecessors, or images that need it are likely. As long
    as stages wait for it, it stays, and so does all that is dearer: an executor sees to those stages first; but it
    leaves for one that has waited too long.
    """

    def watch(self, pool: PoolView, world: World) -> None:
        self._pool, self._world = pool, world
        self._changed = world.demand.subscribe()
        self._backlog = next(iter(world.executors.values())).backlog
        self._keys: dict[str, Key] = {}
        self._order: SortedDict[Key, str] = SortedDict()

    def rank(self, pool: PoolView, world: World, now: float) -> Iterator[str]:
        self._catch_up()
        return iter(self._order.values())

    def spares(self, expert: str, newcomer: str, now: float) -> bool:
        waiting, wanting = self._backlog.first(expert), self._backlog.first(newcomer)
        if waiting is None:
            return False
        # Who has waited for too long takes the place of one for whom nobody has waited as long.
        urgent = wanting is not None and wanting.since_s <= self._world.urgent_s(now)
        return not (urgent and wanting is not None and wanting.since_s < waiting.since_s)

    def _catch_up(self) -> None:
        for expert in self._changed:
            if (old := self._keys.pop(expert, None)) is not None:
                del self._order[old]
            if expert in self._pool:
                self._keys[expert] = key = (self._loss_s(expert) / self._pool.size(expert), expert)
                self._order[key] = expert
        self._changed.clear()

    def _loss_s(self, expert: str) -> float:
        demand, cost = self._world.demand, self._world.costs(self._pool.device, expert)
        expected = demand.coming(expert) + config.OUTLOOK_IMAGES * demand.usage(expert)
        return expected * cost.load_s + demand.open(expert) * cost.per_image_s
