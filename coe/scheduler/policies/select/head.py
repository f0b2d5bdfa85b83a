"""The head of the backlog."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Select, World


class Head(Select):
    """The arrange policy has made the order; an executor waits until the expert of the head is loaded."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        yield from islice(executor.backlog.groups(), 1)
