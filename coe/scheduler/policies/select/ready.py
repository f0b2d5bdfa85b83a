"""Late binding: an idle executor takes any group whose expert is in its pool, the fullest batch first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Need, Select, World
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool


class Ready(Select):
    """The full batch that has waited longest, then batches by size: a batch that is not full may still grow.

    Groups in a hurry go first, by due time. While stages wait for absent experts, the group of the next expert to leave
    for them goes before the rest, so that no load waits for room.
    """

    needs = frozenset({Need.SHARED_BACKLOG, Need.LOADS})
    gives = frozenset({Need.RESIDENT_FIRST, Need.DUE_FIRST})

    def watch(self, world: World) -> None:
        self._world = world
        self._changed = world.demand.subscribe()
        self._holders = {executor.pool.id: executor for executor in world.executors.values()}
        self._fullest = {id: Ranking() for id in self._holders}
        self._hurried = {id: Ranking() for id in self._holders}
        self._absent: dict[str, Group] = {}
        self._absent_hurried = Ranking()
        self._ahead = {holder.device: world.loads_ahead(holder.device) for holder in self._holders.values()}
        self._largest_bytes = {
            executor.device: max(world.costs(executor.device, expert).weights_bytes for expert in world.graph.experts)
            for executor in world.executors.values()
        }

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        self._catch_up()
        id = executor.pool.id
        if not self._fullest[id]:
            return
        blocking = self._blocking(executor, now) if self._absent else None
        leaving = blocking if blocking and self._must_leave(executor.pool, blocking) else None
        for expert in self._hurried[id]:
            if (group := _group(executor, expert)) is not leaving:
                yield group
        if blocking is not None and blocking is not leaving and blocking.due_s == math.inf:
            yield blocking
        for expert in self._fullest[id]:
            if (group := _group(executor, expert)) is not blocking and group.due_s == math.inf:
                yield group

    def _must_leave(self, pool: ModelPool, blocking: Group) -> bool:
        """Return whether the blocking group's expert must leave now: it has run, and an absent group is due earlier."""
        if not self._absent_hurried or pool.unused(blocking.expert):
            return False
        return self._absent[next(iter(self._absent_hurried))].due_s < blocking.due_s

    def _blocking(self, executor: Executor, now: float) -> Group | None:
        """Return the group of the next expert to leave that has waiting stages; None if there is room without it.

        Room is made for the loads after the present load, or after the load that begins once this executor is busy.
        So the disk never waits for the end of a long batch.
        """
        pool = executor.pool
        loads = min(len(self._absent), self._ahead[executor.device] + (0 if pool.is_moving() else 1))
        missing = pool.missing_bytes(loads * self._largest_bytes[executor.device])
        for expert in self._world.evictions[pool.id].rank(pool, self._world, now):
            if missing <= 0:
                return None
            if not pool.is_ready(expert):
                continue
            if executor.backlog.waiting(expert):
                return _group(executor, expert)
            missing -= pool.frees(expert)
        return None

    def _catch_up(self) -> None:
        for expert in self._changed:
            self._absent.pop(expert, None)
            self._absent_hurried.drop(expert)
            holders = [executor for executor in self._holders.values() if expert in executor.pool]
            for id, executor in self._holders.items():
                group = executor.backlog.first(expert)
                if group is None or executor not in holders:
                    self._fullest[id].drop(expert)
                    self._hurried[id].drop(expert)
                else:
                    full = self._world.costs(executor.device, expert).max_batch
                    fill = min(1.0, executor.backlog.waiting(expert) / full)
                    self._fullest[id].put(expert, -fill, group.since_s)
                    _place(self._hurried[id], group)
                if group is not None and not holders:
                    self._absent[expert] = group
                    _place(self._absent_hurried, group)
        self._changed.clear()


def _group(executor: Executor, expert: str) -> Group:
    group = executor.backlog.first(expert)
    assert group is not None, f"nothing waits for '{expert}'"
    return group


def _place(hurried: Ranking, group: Group) -> None:
    """Rank a group by when it is due, if it is in a hurry."""
    if group.due_s < math.inf:
        hurried.put(group.expert, group.due_s)
    else:
        hurried.drop(group.expert)
