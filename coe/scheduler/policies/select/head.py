"""The head of the backlog."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe.scheduler.policies.base import ExecutorView, GroupView, Select, World


class Head(Select):
    """Order is made when stages are arranged; an executor waits for the expert of the head."""

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[GroupView]:
        yield from islice(executor.backlog.groups(), 1)
