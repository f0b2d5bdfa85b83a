"""The next groups in the backlog, so that a load is over before its group's turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Prefetch, World


class NextGroup(Prefetch):
    """The order of the backlog, as in the paper's cost model: a load is hidden by the work on an earlier group."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from (group.expert for group in islice(executor.backlog.groups(), config.PREFETCH_GROUPS))
