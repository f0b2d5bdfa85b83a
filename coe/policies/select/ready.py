"""Late binding: an idle executor takes from all that waits for experts of its pool, the fullest batch first."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe.policies.base import ExecutorView, GroupView, Select, World

Key = tuple[float, float, str]


class Ready(Select):
    """Of full batches the one that waits longest, then by size: a batch that is not full may still grow."""

    def watch(self, world: World) -> None:
        self._changed = world.demand.subscribe()
        self._orders: dict[str, SortedDict[Key, str]] = {e.pool.id: SortedDict() for e in world.executors.values()}
        self._keys: dict[tuple[str, str], Key] = {}
        self._pools = {e.pool.id: e for e in world.executors.values()}

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[GroupView]:
        self._catch_up(world)
        for expert in self._orders[executor.pool.id].values():
            group = executor.backlog.first(expert)
            assert group is not None
            yield group

    def _catch_up(self, world: World) -> None:
        for expert in self._changed:
            for id, executor in self._pools.items():
                old = self._keys.pop((id, expert), None)
                if old is not None:
                    del self._orders[id][old]
                waiting = executor.backlog.waiting(expert)
                if waiting and expert in executor.pool:
                    first = executor.backlog.first(expert)
                    assert first is not None
                    full = world.costs(executor.device, expert).max_batch
                    key = (-min(1.0, waiting / full), first.since_s, expert)
                    self._keys[id, expert] = key
                    self._orders[id][key] = expert
        self._changed.clear()
