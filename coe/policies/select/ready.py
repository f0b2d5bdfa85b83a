"""Late binding: an idle executor takes from all that waits for experts of its pool, the fullest batch first."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe.policies.base import ExecutorView, GroupView, PoolView, Select, World

Key = tuple[float, float, str]


class Ready(Select):
    """Of full batches the one that waits longest, then by size: a batch that is not full may still grow.

    While absent experts are wanted, those that are to leave for them next go first, so that no load waits for room.
    """

    def watch(self, world: World) -> None:
        self._changed = world.demand.subscribe()
        self._holders = {executor.pool.id: executor for executor in world.executors.values()}
        self._orders: dict[str, SortedDict[Key, str]] = {id: SortedDict() for id in self._holders}
        self._keys: dict[tuple[str, str], Key] = {}
        self._absent: set[str] = set()
        self._largest_bytes = {
            executor.device: max(world.costs(executor.device, expert).weights_bytes for expert in world.graph.experts)
            for executor in world.executors.values()
        }

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[GroupView]:
        self._catch_up(world)
        blocking = self._blocking(executor, world, now) if self._absent else None
        if blocking is not None:
            yield blocking
        for expert in self._orders[executor.pool.id].values():
            if (group := _group(executor, expert)) is not blocking:
                yield group

    def _blocking(self, executor: ExecutorView, world: World, now: float) -> GroupView | None:
        """Return what waits for an expert that is to make room for the next load, if such a one is in the way."""
        pool: PoolView = executor.pool
        missing = pool.missing_bytes(self._largest_bytes[executor.device])
        for expert in world.evictions[pool.id].rank(pool, world, now):
            if missing <= 0:
                return None
            if executor.backlog.waiting(expert):
                return _group(executor, expert)
            missing -= pool.size(expert)
        return None

    def _catch_up(self, world: World) -> None:
        for expert in self._changed:
            here = False
            for id, executor in self._holders.items():
                if (old := self._keys.pop((id, expert), None)) is not None:
                    del self._orders[id][old]
                waiting = executor.backlog.waiting(expert)
                if expert in executor.pool:
                    here = True
                    if waiting:
                        fill = min(1.0, waiting / world.costs(executor.device, expert).max_batch)
                        self._keys[id, expert] = key = (-fill, _group(executor, expert).since_s, expert)
                        self._orders[id][key] = expert
            if waiting and not here:
                self._absent.add(expert)
            else:
                self._absent.discard(expert)
        self._changed.clear()


def _group(executor: ExecutorView, expert: str) -> GroupView:
    group = executor.backlog.first(expert)
    assert group is not None, f"nothing waits for '{expert}'"
    return group
