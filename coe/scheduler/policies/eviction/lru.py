"""Least recently used first (Samba-CoE)."""

from __future__ import annotations

from collections.abc import Iterator

from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.pool import ModelPool


class Lru(Eviction):
    """Ranks by recency of use; an expert that has not run since its load counts as used at its load."""

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return pool.by_recency()
