"""CoServe, as the paper has it (sections 4.2 and 4.3): its policies, and the strategy `coserve`.

Nothing of the engine imports them: they are found by the names of their entry points, as a user's are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from sortedcontainers import SortedDict

from coe import config
from coe.scheduler.backlog import Backlog, Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Prefetch, Select, World
from coe.scheduler.pool import ModelPool, State
from coe.scheduler.strategies import Strategy


class Makespan(Assign):
    """Chooses the executor that keeps the longest total time of all executors least.

    Ties go to the smallest additional latency, then to the executor that is done sooner, then to the first by name.
    """

    def choose(self, expert: str, world: World, now: float) -> str:
        remaining = {id: executor.remaining_s(now) for id, executor in world.executors.items()}
        ordered = sorted(remaining.values(), reverse=True)
        longest, second = ordered[0], ordered[1] if len(ordered) > 1 else 0.0

        def rank(executor: Executor) -> tuple[float, float, float, str]:
            before = remaining[executor.id]
            others = second if before == longest else longest
            added = additional_s(expert, executor, world)
            return max(before + added, others), added, before, executor.id

        return min(world.executors.values(), key=rank).id


def additional_s(expert: str, executor: Executor, world: World) -> float:
    """Predict the latency that one more stage of an expert adds to an executor, in seconds.

    Execution takes K if the backlog already holds stages of the expert, else K + B. The switch is free if the expert is
    resident or on its way, or if the backlog already holds its stages.
    """
    cost = world.costs(executor.device, expert)
    if executor.backlog.waiting(expert):
        return cost.per_image_s
    switch_s = 0.0 if expert in executor.pool else world.switch_s(executor.pool, expert)
    return cost.per_image_s + cost.base_s + switch_s


class GroupForATime(Arrange):
    """Stages of one expert run together, until their group has been running for `config.GROUP_HOLD_S`.

    Without this bound, which is ours, a busy expert could hold up the others for ever.
    """

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        group = backlog.latest(expert)
        return group is not None and (group.started_s is None or now - group.started_s <= config.GROUP_HOLD_S)


class FirstGroup(Select):
    """The arrange policy has made the order; an executor waits until the expert of the first group is loaded."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        yield from islice(executor.backlog.groups(), 1)


class NextGroups(Prefetch):
    """The order of the backlog: a load is hidden by the work on an earlier group."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from (group.expert for group in islice(executor.backlog.groups(), config.PREFETCH_GROUPS))


class Dependency(Eviction):
    """Stage 1: experts that wait for predecessors none of which is loaded, largest first. Stage 2: by probability.

    The paper evicts these orphans first "since these experts are not executed until their preliminary experts are fully
    loaded". An expert with which the inspection of a component begins runs at once, so it is none, whatever it follows
    elsewhere.
    """

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._graph = pool, world.graph
        self._backed: Counter[str] = Counter()
        """For each expert, in the pool or not, how many of its predecessors are loaded."""
        self._orphans: SortedDict[tuple[int, float, str], str] = SortedDict()
        self._orphan_keys: dict[str, tuple[int, float, str]] = {}
        self._others: SortedDict[tuple[float, str], str] = SortedDict()

    def entered(self, expert: str) -> None:
        self._place(expert)

    def loaded(self, expert: str) -> None:
        for successor in self._graph.successors(expert):
            self._backed[successor] += 1
            if self._backed[successor] == 1 and successor in self._pool:
                self._no_orphan(successor)
                self._place(successor)

    def left(self, expert: str) -> None:
        self._no_orphan(expert)
        self._others.pop(self._as_other(expert), None)
        if self._pool.state(expert) is not State.LEAVING:
            return  # it was never loaded
        for successor in self._graph.successors(expert):
            self._backed[successor] -= 1
            if not self._backed[successor] and successor in self._pool:
                self._others.pop(self._as_other(successor), None)
                self._place(successor)

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return chain(self._orphans.values(), self._others.values())

    def _place(self, expert: str) -> None:
        if self._graph.waits_for_others(expert) and not self._backed[expert]:
            key = self._orphan_keys[expert] = (-self._pool.size(expert), self._graph.probability(expert), expert)
            self._orphans[key] = expert
        else:
            self._others[self._as_other(expert)] = expert

    def _no_orphan(self, expert: str) -> None:
        if (key := self._orphan_keys.pop(expert, None)) is not None:
            del self._orphans[key]

    def _as_other(self, expert: str) -> tuple[float, str]:
        return self._graph.probability(expert), expert


COSERVE = Strategy("coserve", Makespan, GroupForATime, FirstGroup, Dependency, NextGroups)
