"""Experts on their way into pools and out of them: the commands, and what the books note of them.

Bytes are reserved before a load is issued and become free only when an eviction has ended, so a slow copy cannot
overcommit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import filterfalse

from coe.core import Batch
from coe.scheduler.costs import Tier
from coe.scheduler.events import Command, Evict, Load, Why
from coe.scheduler.executor import Executor, Flight
from coe.scheduler.host_cache import HostCache, Passage
from coe.scheduler.plan import Plan
from coe.scheduler.policies.base import World
from coe.scheduler.pool import ModelPool


class Transfers:
    """All pools of a run, and the host cache if the plan has one. `emit` takes the commands."""

    def __init__(self, plan: Plan, emit: Callable[[Command], None]) -> None:
        self.pools = {spec.id: ModelPool(spec) for spec in plan.pools}
        self.cache = HostCache(plan.cache) if plan.cache else None
        self._emit = emit
        self._lost: set[str] = set()

    def watch(self, world: World) -> None:
        """Take the world: before anything is loaded, and again with other rules."""
        self._world = world
        self._backlogs = {id: world.backlogs(id) for id in self.pools}
        self._tiers = {id: world.tiers(pool.device) for id, pool in self.pools.items()}

    def is_loading(self) -> bool:
        """Return whether an expert is on its way into a pool or into host memory."""
        return self.is_reading() or any(pool.is_moving() for pool in self.pools.values())

    def is_reading(self) -> bool:
        """Return whether an expert is on its way from the disk."""
        for pool in self.pools.values():
            if pool.is_moving_from(Tier.DISK):
                return True
        return self.cache is not None and self.cache.is_filling()

    def idle_tiers(self, pool: ModelPool) -> list[Tier]:
        """Return the tiers from which a pool can load and does not: a lane of its own reads each."""
        return list(filterfalse(pool.is_moving_from, self._tiers[pool.id]))

    def issue(self) -> None:
        """Reserve the bytes of planned experts for which there is room by now, and emit their `Load`.

        First come, first served in each pool: an expert without room holds up those that were planned after it. With a
        host cache, the books of copies change, too.
        """
        for pool in self.pools.values():
            for expert in pool.to_reserve():
                if not pool.reserve(expert):
                    break
                self._begin_load(pool, expert)

    def _begin_load(self, pool: ModelPool, expert: str) -> None:
        why = pool.why(expert)
        if why is Why.SPECULATIVE and self._is_wanted(pool, expert):
            why = Why.PREFETCH
        passage = Passage(Tier.DISK)
        if why is not Why.INITIAL and (cache := self._cache_of(pool)) is not None:
            passage = cache.fetch(expert, pool.size(expert))
        pool.lies_in(expert, passage.source)
        self._emit(Load(pool.id, expert, why, passage.source, passage.keep_copy, passage.drops))

    def fetched(self, pool: str, expert: str) -> None:
        """Note that an expert on its way has been read from disk."""
        self.pools[pool].lies_in(expert, Tier.HOST)

    def loaded(self, pool: str, expert: str) -> None:
        """Note that a load has ended well."""
        book = self.pools[pool]
        self._landed(book, expert)
        book.commit(expert)
        self._let_go(book)

    def evicted(self, pool: str, expert: str) -> None:
        """Note that an evicted expert is gone: its bytes are free."""
        self.pools[pool].release(expert)

    def failed(self, pool: str, expert: str) -> None:
        """Note that a load failed; the copy in host memory that it used is dropped, because it may be damaged."""
        book = self.pools[pool]
        self._landed(book, expert)
        book.abandon(expert)
        if (cache := self._cache_of(book)) is not None:
            cache.forget(expert)

    def fill_ended(self, expert: str, *, is_there: bool) -> None:
        """Note that the fill under way has ended; `is_there` tells whether the copy is in host memory."""
        if self.cache is not None:
            self.cache.end_fill()
            if not is_there:
                self.cache.forget(expert)

    def begin(self, executor: Executor, batch: Batch, held_bytes: int, until_s: float) -> None:
        """Begin a batch on an executor, and pin its expert. Raises ValueError if `held_bytes` are not free."""
        executor.pool.pin(batch.expert, held_bytes)
        executor.begin(batch, held_bytes, until_s)

    def ended(self, pool: ModelPool, flight: Flight) -> None:
        """Note that a batch has ended, and unpin its expert."""
        pool.unpin(flight.batch.expert, flight.held_bytes)
        self._let_go(pool)

    def lose(self, pool: str) -> None:
        """Drop all experts of a pool whose device is lost: at once, or after their load or batch has ended."""
        self._lost.add(pool)
        self._let_go(self.pools[pool])

    def stop(self) -> None:
        """Cancel all loads that wait for room, or for an expert to leave first."""
        for pool in self.pools.values():
            for expert in pool.planned():
                pool.cancel(expert)

    def check(self, *, idle: bool = False) -> None:
        """Prove the books of all pools; raises AssertionError."""
        for pool in self.pools.values():
            pool.check(idle=idle)
        if self.cache is not None:
            self.cache.check(idle=idle)

    def _evict(self, pool: ModelPool, victim: str, wanted: str | None = None) -> None:
        """Let an expert leave for the expert `wanted`, if it leaves for one."""
        cache = self._cache_of(pool)
        passage = Passage(Tier.DISK)
        if cache is not None:
            passage = cache.leave(victim, pool.size(victim), wanted)
        pool.leave(victim)
        self._emit(Evict(pool.id, victim, passage.keep_copy, passage.drops))

    def _let_go(self, pool: ModelPool) -> None:
        """Let the experts go that may: all if the device is lost, else those that no rule names any more."""
        if pool.id in self._lost:
            for expert in pool.planned():
                pool.cancel(expert)
            for expert in [expert for expert in pool.by_arrival() if pool.evictable(expert)]:
                pool.leave(expert)
                pool.release(expert)
            return
        for expert in pool.unnamed():  # no stage can wait for it
            pool.leave(expert)
            self._emit(Evict(pool.id, expert))

    def _landed(self, pool: ModelPool, expert: str) -> None:
        if pool.why(expert) is not Why.INITIAL and (cache := self._cache_of(pool)) is not None:
            cache.landed(expert)

    def _cache_of(self, pool: ModelPool) -> HostCache | None:
        return self.cache if self.cache is not None and self.cache.serves(pool.device) else None

    def _is_wanted(self, pool: ModelPool, expert: str) -> bool:
        return any(backlog.waiting(expert) for backlog in self._backlogs[pool.id])

    def _bytes(self, pool: ModelPool, expert: str) -> int:
        return self._world.costs(pool.device, expert).weights_bytes
