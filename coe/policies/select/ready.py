"""Late binding: an idle executor takes from all that waits for experts of its pool, the fullest batch first."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe.policies.base import ExecutorView, GroupView, PoolView, Select, World

Key = tuple[float, float, str]
Age = tuple[float, str]


class Ready(Select):
    """Of full batches the one that waits longest, then by size: a batch that is not full may still grow.

    What is urgent goes before, the oldest first. While absent experts are wanted, those that are to leave for them next
    go first, so that no load waits for room.
    """

    def watch(self, world: World) -> None:
        self._changed = world.demand.subscribe()
        self._holders = {executor.pool.id: executor for executor in world.executors.values()}
        self._orders: dict[str, SortedDict[Key, str]] = {id: SortedDict() for id in self._holders}
        self._ages: dict[str, SortedDict[Age, str]] = {id: SortedDict() for id in self._holders}
        self._keys: dict[tuple[str, str], Key] = {}
        self._absent: SortedDict[Age, str] = SortedDict()
        self._absent_ages: dict[str, Age] = {}
        self._largest_bytes = {
            executor.device: max(world.costs(executor.device, expert).weights_bytes for expert in world.graph.experts)
            for executor in world.executors.values()
        }

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[GroupView]:
        self._catch_up(world)
        urgent_s = world.urgent_s(now)
        blocking = self._blocking(executor, world, now) if self._absent else None
        leaving = self._leaving(executor, blocking, urgent_s)
        for since_s, expert in self._ages[executor.pool.id]:
            if since_s > urgent_s:
                break
            if (group := _group(executor, expert)) is not leaving:
                yield group
        if blocking is not None and blocking is not leaving and blocking.since_s > urgent_s:
            yield blocking
        for expert in self._orders[executor.pool.id].values():
            if (group := _group(executor, expert)) is not blocking and group.since_s > urgent_s:
                yield group

    def _leaving(self, executor: ExecutorView, blocking: GroupView | None, urgent_s: float) -> GroupView | None:
        """Return what is left alone, so that its expert can leave: something absent has waited longer, and too long."""
        if blocking is None or executor.pool.unused(blocking.expert):
            return None
        oldest_s, _ = self._absent.keys()[0]
        return blocking if oldest_s <= urgent_s and oldest_s < blocking.since_s else None

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
                    del self._ages[id][old[1:]]
                waiting = executor.backlog.waiting(expert)
                if expert in executor.pool:
                    here = True
                    if waiting:
                        fill = min(1.0, waiting / world.costs(executor.device, expert).max_batch)
                        self._keys[id, expert] = key = (-fill, _group(executor, expert).since_s, expert)
                        self._orders[id][key] = expert
                        self._ages[id][key[1:]] = expert
            if (age := self._absent_ages.pop(expert, None)) is not None:
                del self._absent[age]
            if waiting and not here:
                self._absent_ages[expert] = age = (_group(executor, expert).since_s, expert)
                self._absent[age] = expert
        self._changed.clear()


def _group(executor: ExecutorView, expert: str) -> GroupView:
    group = executor.backlog.first(expert)
    assert group is not None, f"nothing waits for '{expert}'"
    return group
