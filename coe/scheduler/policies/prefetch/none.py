"""No expert is loaded before a group that needs it has its turn."""

from __future__ import annotations

from collections.abc import Iterator

from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Prefetch, World


class Nothing(Prefetch):
    """Experts are loaded on demand only."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from ()
