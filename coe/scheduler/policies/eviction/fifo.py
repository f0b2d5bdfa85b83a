"""First in, first out (Samba-CoE FIFO, CoServe None)."""

from __future__ import annotations

from collections.abc import Iterator

from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.pool import ModelPool


class Fifo(Eviction):
    """Ranks by the time of residence, the longest first."""

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return pool.by_arrival()
