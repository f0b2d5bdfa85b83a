"""The paper's baselines (section 5.1), Samba-CoE in three forms, and its ablations of CoServe (section 5.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coe.scheduler.backlog import Backlog
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Prefetch, World
from coe.scheduler.pool import ModelPool
from coe.scheduler.strategies import Strategy


class RoundRobin(Assign):
    """Each stage goes to the next executor in turn, whatever its expert."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, expert: str, world: World, now: float) -> str:
        ids = list(world.executors)
        self._turn = (self._turn + 1) % len(ids)
        return ids[self._turn - 1]


class Append(Arrange):
    """First come, first served: each stage goes to the end."""

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return False


class Fifo(Eviction):
    """Ranks by the time of residence, the longest first."""

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return pool.by_arrival()


class Lru(Eviction):
    """Ranks by recency of use; an expert that has not run since its load counts as used at its load."""

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return pool.by_recency()


class NoPrefetch(Prefetch):
    """Experts are loaded on demand only."""

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        yield from ()


SAMBA = Strategy("samba", RoundRobin, Append, eviction=Lru, prefetch=NoPrefetch, single=True, cached=True)
SAMBA_FIFO = replace(SAMBA, name="samba-fifo", eviction=Fifo)
SAMBA_PARALLEL = replace(SAMBA, name="samba-parallel", single=False)
COSERVE_NONE = Strategy("coserve-none", RoundRobin, Append, eviction=Fifo, prefetch=NoPrefetch)
COSERVE_EM = Strategy("coserve-em", RoundRobin, Append, prefetch=NoPrefetch)
COSERVE_EM_RA = Strategy("coserve-em-ra", RoundRobin)
