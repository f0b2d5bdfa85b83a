"""HOBBIT's adaptive prefetch (section 3.3): along the paths of the images that run, as deep as everything is there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Prefetch, World
from coe.scheduler.policies.paths import remaining

_LAYERS = 3
"""How many layers ahead it looks at most; the paper recommends 1 to 3."""


class AlongPath(Prefetch):
    """First the next groups in the backlog, which are certain; then the layer that comes next for images that run.

    If all experts of that layer are in the pool, the layer after it is looked at, up to 3 layers ahead. HOBBIT predicts
    the next layers from the gate's input; here the rules say what follows.
    """

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from (group.expert for group in islice(executor.backlog.groups(), config.PREFETCH_GROUPS))

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
