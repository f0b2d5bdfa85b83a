"""The head of the backlog."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Select, World


class Head(Select):
    """Order is made when stages are arranged; an executor waits for the expert of the head."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        yield from islice(executor.backlog.groups(), 1)
