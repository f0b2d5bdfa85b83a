"""Nothing is loaded before its turn."""

from __future__ import annotations

from collections.abc import Iterator

from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Prefetch, World


class Nothing(Prefetch):
    """Loads are made on demand alone."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from ()
