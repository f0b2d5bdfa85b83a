"""Late binding: no stage is bound to an executor. An idle executor takes any group whose expert is in its pool."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import partial
from operator import itemgetter

from sortedcontainers import SortedList

from coe.scheduler import policies
from coe.scheduler.backlog import Backlog, Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Arrange, Assign, Need, Select, World
from coe.scheduler.pool import ModelPool

_expert = itemgetter(2)


class Ranking:
    """Experts, the least key first; ties in the order of names.

    Policies keep it that rank often while few keys change.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, float, str]] = {}
        self._order: SortedList[tuple[float, float, str]] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return map(_expert, self._order)

    def key(self, expert: str) -> float | None:
        """Return the key of an expert; None if it is not known."""
        entry = self._entries.get(expert)
        return None if entry is None else entry[0]

    def put(self, expert: str, key: float, then: float = 0.0) -> None:
        """Place an expert, or move it; `then` decides between equal keys."""
        entry = (key, then, expert)
        if self._entries.get(expert) != entry:
            self.drop(expert)
            self._entries[expert] = entry
            self._order.add(entry)

    def drop(self, expert: str) -> None:
        """Forget an expert, if it is known."""
        if (entry := self._entries.pop(expert, None)) is not None:
            self._order.remove(entry)


class Shared(Assign):
    """Returns any executor, because all of them have the same backlog."""

    gives = frozenset({Need.SHARED_BACKLOG})

    def choose(self, expert: str, world: World, now: float) -> str:
        return next(iter(world.executors))


class GroupByExpert(Arrange):
    """A stage joins the group of its expert, however long the group has been running."""

    needs = frozenset({Need.DUE_FIRST})

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return True


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
        (self._backlog,) = world.backlogs()
        self._holders = {executor.pool.id: executor for executor in world.executors.values()}
        self._fullest = {id: Ranking() for id in self._holders}
        self._hurried = {id: Ranking() for id in self._holders}
        self._absent: dict[str, Group] = {}
        self._absent_hurried = Ranking()
        self._hurrying: set[str] = set()
        self._ahead = {holder.device: world.loads_ahead(holder.device) for holder in self._holders.values()}
        self._largest_bytes = {
            executor.device: max(world.costs(executor.device, expert).weights_bytes for expert in world.graph.experts)
            for executor in world.executors.values()
        }

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        if self._changed:
            self._catch_up()
        pool, id = executor.pool, executor.pool.id
        if not self._fullest[id]:
            return
        # The ranking takes in changed numbers when it is asked for. So it is asked for even if nothing can run.
        going = policies.leaving(self._world, pool, now) if self._absent else None
        if not any(map(pool.is_ready, self._fullest[id])):
            return
        blockers = list(self._blocking(executor, going)) if going is not None else []
        leaving = list(filter(partial(self._must_leave, pool), blockers))
        for expert in self._hurried[id] if self._hurrying else ():
            if (group := _group(executor, expert)) not in leaving:
                yield group
        first = blockers[:1] if blockers and blockers[0] not in leaving and blockers[0].due_s == math.inf else []
        yield from first
        elsewhere = first + leaving
        for expert in self._fullest[id]:
            if (group := _group(executor, expert)) not in elsewhere and group.due_s == math.inf:
                yield group

    def _must_leave(self, pool: ModelPool, blocking: Group) -> bool:
        """Return whether the blocking group's expert must leave now: it has run, and an absent group is due earlier."""
        if not self._absent_hurried or pool.unused(blocking.expert):
            return False
        return self._absent[next(iter(self._absent_hurried))].due_s < blocking.due_s

    def _blocking(self, executor: Executor, going: Iterator[str]) -> Iterator[Group]:
        """Yield the group of the next expert to leave that has waiting stages, if there is no room without it.

        If images in a hurry wait for absent experts, all such groups follow that must leave before there is room.
        """
        # `going` are the experts of the pool in the order in which they leave. Room is made for the loads after the
        # present load, or after the load that begins once this executor is busy. So the disk never waits for the end of
        # a long batch.
        pool = executor.pool
        loads = min(len(self._absent), self._ahead[executor.device] + (0 if pool.is_moving() else 1))
        missing = pool.missing_bytes(loads * self._largest_bytes[executor.device])
        for expert in going:
            if missing <= 0:
                return
            if not pool.is_ready(expert):
                continue
            if executor.backlog.waiting(expert):
                yield _group(executor, expert)
                if not self._absent_hurried:
                    return
            missing -= pool.frees(expert)

    def _catch_up(self) -> None:
        for expert in self._changed:
            group, here = self._backlog.first(expert), []
            for id, executor in self._holders.items():
                if group is None or expert not in executor.pool:
                    self._fullest[id].drop(expert)
                else:
                    here.append(id)
                    full = self._world.costs.stated(executor.device, expert).max_batch
                    fill = min(1.0, self._backlog.waiting(expert) / full)
                    self._fullest[id].put(expert, -fill, group.since_s)
            if group is None or here:
                self._absent.pop(expert, None)
            else:
                self._absent[expert] = group
            if self._hurrying or self._backlog.has_hurried:
                self._hurry(expert, math.inf if group is None else group.due_s, here)
        self._changed.clear()

    def _hurry(self, expert: str, due_s: float, here: Collection[str]) -> None:
        """Rank an expert by when its stages are due in the pools where it is, if they are in a hurry."""
        if expert in self._hurrying:
            self._hurrying.discard(expert)
            for ranking in (self._absent_hurried, *self._hurried.values()):
                ranking.drop(expert)
        if due_s < math.inf:
            self._hurrying.add(expert)
            for ranking in [self._hurried[id] for id in here] or [self._absent_hurried]:
                ranking.put(expert, due_s)


def _group(executor: Executor, expert: str) -> Group:
    group = executor.backlog.first(expert)
    assert group is not None, f"nothing waits for '{expert}'"
    return group
