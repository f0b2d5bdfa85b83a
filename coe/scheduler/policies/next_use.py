"""By next use: the expert that is cheapest to give up leaves first, in seconds lost for each byte freed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from coe import config
from coe.scheduler.events import Why
from coe.scheduler.policies.base import Eviction, Need, World
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool

_STEPS = 2
"""Experts whose load is equally long for each byte, to a factor of 2 ** (1 / _STEPS), are ranked together."""


class NextUse(Eviction):
    """Giving up an expert costs the loads that bring it back, and the time in which its open stages run.

    It must come back for stages that are on their way to it through its predecessors, and for images that are likely to
    need it: where it is foreseen, for the next of these images, else by its usage probability. An expert stays while
    stages wait for it, and so do all that cost more: an executor runs those stages first. But it leaves for an expert
    whose stages are due earlier. An expert with a copy in host memory comes back sooner than from the disk, and so
    leaves sooner. For a speculative load only experts leave that are needed later than the newcomer.

    Foreseen experts are ranked by the place of their next image, the furthest first: as images come the loss of all of
    them grows, and their order stays.
    """

    needs = frozenset({Need.SHARED_BACKLOG, Need.RESIDENT_FIRST})

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._world = pool, world
        self._changed = world.demand.subscribe()
        (self._backlog,) = world.backlogs()
        self._order = Ranking()
        # By the logarithm of the seconds of a load for each byte.
        self._by_place: dict[int, Ranking] = {}
        self._step: dict[str, int] = {}

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        foresees = bool(self._changed) and self._world.foresight.foresees()
        for expert in self._changed:
            if expert in self._pool:
                self._place(expert, foresees=foresees)
            else:
                self._forget(expert)
        self._changed.clear()
        if not self._step:
            return iter(self._order)
        rankings = [ranking for ranking in self._by_place.values() if len(ranking)]
        return heapq.merge(self._order, *rankings, key=self._loss_now)

    def stays(self, expert: str, newcomer: str, why: Why) -> bool:
        waiting, wanting = self._backlog.first(expert), self._backlog.first(newcomer)
        if waiting is None and why is Why.SPECULATIVE:
            return self._world.images_until(expert) <= self._world.images_until(newcomer)
        return waiting is not None and (wanting is None or wanting.due_s >= waiting.due_s)

    def _place(self, expert: str, *, foresees: bool) -> None:
        """Rank an expert by its next place, or by its loss where its open or coming stages count for more."""
        demand, foresight = self._world.demand, self._world.foresight
        until = foresight.images_until(expert) if foresees else None
        open_stages, coming = demand.open(expert), demand.coming(expert)
        if until is None or open_stages or coming * until > config.OUTLOOK_IMAGES:
            if expert in self._step:
                self._forget(expert)
            expected = coming + config.OUTLOOK_IMAGES * (demand.usage(expert) if until is None else 1 / until)
            loss_s = expected * self._world.switch_s(self._pool, expert)
            if open_stages:
                loss_s += open_stages * self._world.costs(self._pool.device, expert).per_image_s
            self._order.put(expert, loss_s / max(1, self._pool.size(expert)))
            return
        self._forget(expert)
        place = foresight.next_place(expert)
        assert place is not None, f"'{expert}' is foreseen"
        step = round(_STEPS * math.log2(max(self._rate(expert), 1e-30)))
        self._step[expert] = step
        self._by_place.setdefault(step, Ranking()).put(expert, -place)

    def _forget(self, expert: str) -> None:
        self._order.drop(expert)
        if (step := self._step.pop(expert, None)) is not None:
            self._by_place[step].drop(expert)

    def _loss_now(self, expert: str) -> float:
        """Return the seconds lost for each byte, by which the rankings are merged."""
        loss = self._order.key(expert)
        return config.OUTLOOK_IMAGES / self._world.images_until(expert) * self._rate(expert) if loss is None else loss

    def _rate(self, expert: str) -> float:
        return self._world.switch_s(self._pool, expert) / max(1, self._pool.size(expert))
