"""ExpertFlow's prefetch (section 3.2.1): the experts on the predicted paths of the images under way, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Prefetch, World
from coe.scheduler.policies.paths import remaining


class PredictedPrefetch(Prefetch):
    """First the next groups in the backlog; while nothing is loaded, what the images under way will need after them.

    The paper's predictor, a small transformer, sees the tokens; here the component and the rules tell the path.
    """

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from (group.expert for group in islice(executor.backlog.groups(), config.PREFETCH_GROUPS))

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        seen: set[str] = set()
        for image in islice(world.history.under_way.values(), config.PREFETCH_GROUPS):
            for expert in remaining(world.router, image):
                if expert not in seen and expert not in executor.pool:
                    seen.add(expert)
                    yield expert
