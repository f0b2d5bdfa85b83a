"""Techniques of ExpertFlow (sections 3.2 and 3.3): paths predicted, corrected, and batches regrouped by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.core import Finding
from coe.lab.strategies.paths import predicted, remaining
from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.history import HistoryWatcher, ImageView
from coe.scheduler.policies.base import Eviction, Select, World
from coe.scheduler.policies.coserve import NextGroups
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool
from coe.scheduler.strategies import Strategy

_WRONG, _DONE, _NEEDED = 0.0, 1.0, 2.0


class PredictedEviction(Eviction, HistoryWatcher):
    """First experts that came and never ran, and are on no predicted path; then those on no path, least recent first.

    Last are the experts on the predicted paths of images under way, those of few images first.
    """

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._router, self._history = pool, world.router, world.history
        self._needed: Counter[str] = Counter()
        self._ran: dict[str, int] = {}
        self._order = Ranking()
        world.history.watch(self)

    def arrived(self, image: ImageView) -> None:
        self._count(predicted(self._router, image), 1)

    def found(self, image: ImageView, finding: Finding) -> None:
        self._ran[finding.expert] = self._history.images
        way = predicted(self._router, image)
        self._count([finding.expert] if finding.expert in way else [], -1)
        if finding.expert not in way and finding.expert in self._pool:
            self._place(finding.expert)

    def answered(self, image: ImageView) -> None:
        self._count(remaining(self._router, image), -1)

    def entered(self, expert: str) -> None:
        self._ran.pop(expert, None)
        self._place(expert)

    def left(self, expert: str) -> None:
        self._order.drop(expert)

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return iter(self._order)

    def _count(self, experts: list[str] | tuple[str, ...], change: int) -> None:
        for expert in experts:
            self._needed[expert] += change
            if expert in self._pool:
                self._place(expert)

    def _place(self, expert: str) -> None:
        if self._needed[expert]:
            self._order.put(expert, _NEEDED, self._needed[expert])
        elif expert in self._ran:
            self._order.put(expert, _DONE, self._ran[expert])
        else:
            self._order.put(expert, _WRONG)


class PredictedPrefetch(NextGroups):
    """First the next groups; while nothing is loaded, what the images under way will need after them.

    The paper's predictor, a small transformer, sees the tokens; here the component and the rules tell the path.
    """

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        seen: set[str] = set()
        for image in islice(world.history.under_way.values(), config.PREFETCH_GROUPS):
            for expert in remaining(world.router, image):
                if expert not in seen and expert not in executor.pool:
                    seen.add(expert)
                    yield expert


class ByPath(Select):
    """The paper regroups the tokens of two batches by path, so that each batch needs few experts.

    Here a group has one expert already, and its images have theirs to come: of the two groups at the head that with
    fewer absent experts on the paths of its next images goes first. A group is passed over once only.
    """

    def watch(self, world: World) -> None:
        self._passed: dict[str, int] = {}

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        first_two = list(islice(executor.backlog.groups(), 2))
        if len(first_two) == 2 and self._passed.get(executor.id) != first_two[0].key:
            absent = [self._absent(group, executor, world) for group in first_two]
            if absent[1] < absent[0]:
                self._passed[executor.id] = first_two[0].key
                first_two.reverse()
        yield from first_two[:1]

    def _absent(self, group: Group, executor: Executor, world: World) -> int:
        """Return how many experts are absent that the first images of a group will need."""
        needed: set[str] = set()
        for stage in islice(group, config.PREFETCH_GROUPS):
            needed.update(remaining(world.router, world.history.under_way[stage.request_id]))
        return sum(expert not in executor.pool for expert in needed)


EXPERTFLOW = Strategy("expertflow", select=ByPath, eviction=PredictedEviction, prefetch=PredictedPrefetch)
