"""ExpertFlow's cache with correction (section 3.2): what was foreseen wrongly leaves first, what is foreseen last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coe.core import Finding
from coe.scheduler.history import HistoryWatcher, ImageView
from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.policies.paths import predicted, remaining
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool

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
