"""Late binding: an idle executor takes from all that waits for experts of its pool, the fullest batch first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Need, Select, World
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool


class Ready(Select):
    """Of full batches the one that waits longest, then by size: a batch that is not full may still grow.

    What is in a hurry goes before, in the order in which it is due. While absent experts are wanted, those that are to
    leave for them next go first, so that no load waits for room.
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
        self._ahead = {one.device: world.loads_ahead(one.device) for one in self._holders.values()}
        self._largest_bytes = {
            executor.device: max(world.costs(executor.device, expert).weights_bytes for expert in world.graph.experts)
            for executor in world.executors.values()
        }

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        self._catch_up()
        id = executor.pool.id
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
        """Return whether something absent is due before what waits for an expert that is to leave, and has run."""
        if not self._absent_hurried or pool.unused(blocking.expert):
            return False
        return self._absent[next(iter(self._absent_hurried))].due_s < blocking.due_s

    def _blocking(self, executor: Executor, now: float) -> Group | None:
        """Return what waits for an expert that is to make room, if such a one is in the way.

        Room is made for loads after the one that is under way, or begins as soon as this executor is busy: no batch is
        so long then that the disk waits for its end.
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
            missing -= pool.size(expert)
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
