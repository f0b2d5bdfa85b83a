"""By next use: what nobody waits for, least expected per byte and reload cost; then what fewest wait for."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe import config
from coe.policies.base import Eviction, PoolView, World

Key = tuple[int, float, str]


class NextUse(Eviction):
    """What has stages waiting leaves only for what has more of them."""

    def watch(self, pool: PoolView, world: World) -> None:
        self._pool, self._world = pool, world
        self._changed = world.demand.subscribe()
        self._keys: dict[str, Key] = {}
        self._order: SortedDict[Key, str] = SortedDict()

    def rank(self, pool: PoolView, world: World, now: float) -> Iterator[str]:
        self._catch_up()
        return iter(self._order.values())

    def spares(self, expert: str, newcomer: str) -> bool:
        waiting = self._waiting(expert)
        return waiting > 0

    def _waiting(self, expert: str) -> int:
        return next(iter(self._world.executors.values())).backlog.waiting(expert)

    def _catch_up(self) -> None:
        demand = self._world.demand
        for expert in self._changed:
            if (old := self._keys.pop(expert, None)) is not None:
                del self._order[old]
            if expert in self._pool:
                cost = self._world.costs(self._pool.device, expert)
                expected = demand.coming(expert) + config.OUTLOOK_IMAGES * demand.usage(expert)
                key = (int(self._waiting(expert) > 0), expected * cost.load_s / cost.weights_bytes, expert)
                self._keys[expert] = key
                self._order[key] = expert
        self._changed.clear()
