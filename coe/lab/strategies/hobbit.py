"""Techniques of HOBBIT: weighted eviction, and prefetch along paths.

Its low precision at a miss is left out: a line chooses the smallest variant that agrees before it runs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from coe.core import FULL, Finding
from coe.lab.strategies.paths import layers, remaining
from coe.scheduler.executor import Executor
from coe.scheduler.history import HistoryWatcher, ImageView
from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.policies.coserve import NextGroups
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.pool import ModelPool
from coe.scheduler.strategies import Strategy

LRU, LFU, LHU, FLD = 0.3, 0.35, 0.35, 0.0
"""The weights, which add up to 1, fitted on seed 101 of `coe-bench sim`."""
_LAYERS = 3
"""How many layers ahead the prefetch looks at most; the paper recommends 1 to 3."""


class Weighted(Eviction, HistoryWatcher):
    """The expert with the lowest priority leaves first (section 3.4, equation 3).

    The priority adds up, each with its weight: the image at which the expert last ran (LRU), the number of its findings
    (LFU) and of those in full precision (LHU), all three over the number of images so far, and how few layers ahead of
    the present layer it is (FLD). Counts begin again with each board, as the paper's do with each sequence.

    All experts share the number of images, so the first three terms keep their order and stand in a ranking for each
    layer. The last term is the same for a whole layer: the rankings are merged.
    """

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._history = pool, world.history
        self._layer = layers(world.graph)
        self._layers = 1 + max(self._layer.values(), default=0)
        self._order = [Ranking() for _ in range(self._layers)]
        self._present = 0
        self._last: dict[str, int] = {}
        self._used: Counter[str] = Counter()
        self._used_fine: Counter[str] = Counter()
        self._serials: set[str] = set()
        world.history.watch(self)

    def arrived(self, image: ImageView) -> None:
        serial = image.request.serial
        if serial and serial not in self._serials:
            self._serials = {serial} | {other.request.serial for other in self._history.under_way.values()}
            self._used.clear()
            self._used_fine.clear()
            for order in self._order:
                for expert in list(order):
                    self._place(expert)

    def found(self, image: ImageView, finding: Finding) -> None:
        expert = finding.expert
        self._present = self._layer[expert]
        self._last[expert] = self._history.images
        self._used[expert] += 1
        self._used_fine[expert] += finding.variant == FULL
        if expert in self._pool:
            self._place(expert)

    def entered(self, expert: str) -> None:
        self._place(expert)

    def left(self, expert: str) -> None:
        self._order[self._layer[expert]].drop(expert)

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        images = max(1, self._history.images)
        ways = [self._with_priority(layer, images) for layer in range(self._layers)]
        return (expert for _, expert in heapq.merge(*ways))

    def _with_priority(self, layer: int, images: int) -> Iterator[tuple[float, str]]:
        ahead = (layer - self._present) % self._layers
        nearness = FLD * (1 - ahead / self._layers)
        order = self._order[layer]
        return (((order.key(expert) or 0.0) / images + nearness, expert) for expert in order)

    def _place(self, expert: str) -> None:
        key = LRU * self._last.get(expert, 0) + LFU * self._used[expert] + LHU * self._used_fine[expert]
        self._order[self._layer[expert]].put(expert, key)


class AlongPath(NextGroups):
    """First the next groups, which are certain; then the layer that comes next for images that run (section 3.3).

    If all experts of that layer are in the pool, the layer after it is looked at, up to 3 layers ahead. HOBBIT predicts
    the next layers from the gate's input; here the rules say what follows.
    """

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        running = {stage.request_id: stage.expert for flight in executor.flights for stage in flight.batch.stages}
        images = [world.history.under_way[request_id] for request_id in running]
        ways = [[e for e in remaining(world.router, image) if e != running[image.request.id]] for image in images]
        for layer in range(_LAYERS):
            wanted = dict.fromkeys(way[layer] for way in ways if layer < len(way))
            absent = [expert for expert in wanted if expert not in executor.pool]
            yield from absent
            if absent:
                return


HOBBIT = Strategy("hobbit", eviction=Weighted, prefetch=AlongPath)
