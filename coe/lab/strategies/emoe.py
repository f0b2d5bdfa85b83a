"""Techniques of eMoE (sections 3.3 to 3.5): a plan of experts for the next images, and requests by their slack."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.board.router import Router
from coe.lab.strategies.paths import predicted, remaining
from coe.scheduler.backlog import Group
from coe.scheduler.events import Why
from coe.scheduler.executor import Executor
from coe.scheduler.history import HistoryWatcher, ImageView
from coe.scheduler.policies.base import Eviction, Need, Select, World
from coe.scheduler.policies.coserve import NextGroups
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool
from coe.scheduler.strategies import Strategy

PLAN_IMAGES = 40
"""For how many images a plan is used: with more, the paper's models got worse."""


class UsePlan(HistoryWatcher):
    """How many of the next images are expected to need each expert: as many as of the last `PLAN_IMAGES` images.

    `version` counts the plans; before the first plan nothing is expected.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._lately: Counter[str] = Counter()
        self._expected: Counter[str] = Counter()
        self._images = 0
        self.version = 0

    def arrived(self, image: ImageView) -> None:
        """Count what an image will need; make a new plan once enough images have come."""
        self._lately.update(predicted(self._router, image))
        self._images += 1
        if self._images == PLAN_IMAGES:
            self._expected, self._lately, self._images = self._lately, Counter(), 0
            self.version += 1

    def expected(self, expert: str) -> int:
        """Return how many of the next images are expected to need an expert."""
        return self._expected[expert]

    def in_order(self) -> list[str]:
        """Return the experts of the plan, the most needed first; ties in the order of names."""
        return sorted(self._expected, key=lambda expert: (-self._expected[expert], expert))


class PlanEviction(Eviction):
    """Ranks by the number of images that are expected to need an expert, then by usage probability."""

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._graph = pool, world.graph
        self._plan = UsePlan(world.router)
        self._version = 0
        self._order = Ranking()
        world.history.watch(self._plan)

    def entered(self, expert: str) -> None:
        self._place(expert)

    def left(self, expert: str) -> None:
        self._order.drop(expert)

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        if self._version != self._plan.version:
            self._version = self._plan.version
            for expert in list(self._order):
                self._place(expert)
        return iter(self._order)

    def stays(self, expert: str, newcomer: str, why: Why) -> bool:
        return why is Why.SPECULATIVE and self._plan.expected(expert) >= self._plan.expected(newcomer)

    def _place(self, expert: str) -> None:
        self._order.put(expert, self._plan.expected(expert), self._graph.probability(expert))


class PlanPrefetch(NextGroups):
    """First the next groups; while nothing is loaded, the absent experts of the present plan."""

    def watch(self, world: World) -> None:
        self._plan = UsePlan(world.router)
        self._version = 0
        self._order: list[str] = []
        world.history.watch(self._plan)

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        if self._version != self._plan.version:
            self._version, self._order = self._plan.version, self._plan.in_order()
        yield from (expert for expert in self._order if expert not in executor.pool)


class Slack(Select):
    """Groups in a hurry by slack, the least first; then the head of the backlog.

    The slack of a group is the time until it is due, less what the rest of its most urgent image's path is expected to
    take on this device: a load for each expert that is absent, and a batch of one each. The paper expects a latency
    from the number of tokens that a task usually generates, and puts off a request that would make others late.
    """

    gives = frozenset({Need.DUE_FIRST})

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        groups = list(islice(executor.backlog.groups(), config.PREFETCH_GROUPS))
        hurried = [group for group in groups if group.due_s < math.inf]
        slack_s = {group.key: group.due_s - now - self._path_s(group, executor, world) for group in hurried}
        ordered = sorted(hurried, key=lambda group: (slack_s[group.key], group.key))
        yield from (ordered or groups)[:1]

    def _path_s(self, group: Group, executor: Executor, world: World) -> float:
        image = world.history.under_way[next(iter(group)).request_id]
        seconds = 0.0
        for expert in remaining(world.router, image):
            switch_s = 0.0 if expert in executor.pool else world.switch_s(executor.pool, expert)
            seconds += switch_s + world.costs(executor.device, expert).batch_s(1)
        return seconds


EMOE = Strategy("emoe", select=Slack, eviction=PlanEviction, prefetch=PlanPrefetch)
