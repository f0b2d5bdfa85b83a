"""The owner of all pools: it loads experts, and evicts experts to make room. Eviction policies rank them.

Bytes are reserved before a load is issued and become free only when an eviction has ended, so a slow copy cannot
overcommit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from coe.core import Batch
from coe.scheduler import policies
from coe.scheduler.costs import Tier
from coe.scheduler.events import Command, Evict, Fill, Load, Why
from coe.scheduler.executor import Executor
from coe.scheduler.host_cache import HostCache, Passage
from coe.scheduler.plan import Plan
from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.pool import ModelPool


class Residency:
    """All pools of a run, and the host cache if the plan has one. `emit` takes the commands."""

    def __init__(self, plan: Plan, eviction: str | type[Eviction], emit: Callable[[Command], None]) -> None:
        self.pools = {spec.id: ModelPool(spec) for spec in plan.pools}
        self.cache = HostCache(plan.cache) if plan.cache else None
        self.evictions: dict[str, Eviction] = {id: policies.make("eviction", eviction) for id in self.pools}
        self._emit = emit
        self._lost: set[str] = set()
        self._unread: Iterator[str] = iter(())

    def watch(self, world: World) -> None:
        """Take the world; called once, before anything is loaded."""
        self._world = world
        self._backlogs = {id: world.backlogs(id) for id in self.pools}
        self._unread = iter(world.graph.by_probability)
        self._early = {id: world.loads_ahead(pool.device) for id, pool in self.pools.items()}
        for id, pool in self.pools.items():
            self.evictions[id].watch(pool, world)
            pool.tell(self.evictions[id])
            pool.tell(world.demand)
        if self.cache is not None:
            self.cache.tell(world.demand.changed)

    def fill(self) -> None:
        """Plan experts by falling usage probability, in the pools in turn, until no pool has room (paper section 4.1).

        The likeliest of those that fit in no pool come into the host cache as soon as the disk is idle (`fill_host`).
        """
        turn = list(self.pools.values())
        for expert in self._world.graph.by_probability:
            for pool in turn:
                size = self._size(pool, expert)
                if not pool.missing_bytes(size):
                    pool.plan(expert, size, Why.INITIAL)
                    # Issued at once, so that a lane for several pools brings the likeliest experts first.
                    self.issue()
                    turn.remove(pool)
                    turn.append(pool)
                    break

    def fill_host(self) -> None:
        """Let an idle disk read the likeliest expert that lies nowhere into host memory, for the devices behind it.

        The cache is filled only while nothing is loaded. Each expert is considered once: an expert that a device holds
        goes down when it leaves, if the cache demotes.
        """
        if self.cache is None or self.cache.is_filling():
            return
        served = [pool for pool in self.pools.values() if self.cache.serves(pool.device) and pool.id not in self._lost]
        if not served or any(pool.is_moving() for pool in self.pools.values()):
            return
        for expert in self._unread:
            held = expert in self.cache or any(expert in pool for pool in served)
            if not held and self.cache.begin_fill(expert, self._size(served[0], expert)):
                self._emit(Fill(served[0].device, expert))
                return

    def fill_ended(self, expert: str, *, kept: bool) -> None:
        """Note that the fill under way has ended; `kept` tells whether the copy is there."""
        if self.cache is not None:
            self.cache.end_fill()
            if not kept:
                self.cache.forget(expert)

    def issue(self) -> None:
        """Issue the loads of planned experts whose bytes have become free, first come, first served."""
        for pool in self.pools.values():
            if pool.has_planned():
                self._issue(pool)

    def _issue(self, pool: ModelPool) -> None:
        for expert in pool.planned():
            if not pool.reserve(expert):
                break
            why = pool.why(expert)
            passage = Passage(Tier.DISK)
            if why is not Why.INITIAL and (cache := self._cache_of(pool)) is not None:
                passage = cache.fetch(expert, pool.size(expert))
            pool.lies_in(expert, passage.source)
            self._emit(Load(pool.id, expert, why, passage.source, passage.keep, passage.drops))

    def idle_tiers(self, pool: ModelPool) -> set[Tier]:
        """Return the tiers from which a pool can load and does not: they are read by different hands."""
        tiers = Tier if self._cache_of(pool) is not None else (Tier.DISK,)
        return {tier for tier in tiers if not pool.is_moving_from(tier)}

    def fetched(self, pool: str, expert: str) -> None:
        """Note that an expert on its way has been read from disk."""
        self.pools[pool].lies_in(expert, Tier.HOST)

    def loaded(self, pool: str, expert: str) -> None:
        """Note that a load has ended well."""
        self._landed(self.pools[pool], expert)
        self.pools[pool].commit(expert)
        self._give_up_lost(self.pools[pool])

    def evicted(self, pool: str, expert: str) -> None:
        """Note that an evicted expert is gone: its bytes are free."""
        self.pools[pool].release(expert)

    def failed(self, pool: str, expert: str) -> None:
        """Note that a load failed; the copy in host memory that it used is dropped, because it may be damaged."""
        self._landed(self.pools[pool], expert)
        self.pools[pool].abandon(expert)
        if (cache := self._cache_of(self.pools[pool])) is not None:
            cache.forget(expert)

    def make_room(self, pool: ModelPool, expert: str, why: Why, keep: Collection[str], now: float) -> bool:
        """Evict until an expert fits, and plan its load; evict nothing and return False if it cannot fit.

        An expert that was loaded and has not run yet stays while stages wait for it, unless the pool would stand still.
        """
        size = self._size(pool, expert)
        missing = pool.missing_bytes(size)
        victims: list[str] = []
        spared: list[str] = []
        if missing > pool.evictable_bytes:
            return False
        if missing:
            eviction = self.evictions[pool.id]
            for victim in eviction.rank(pool, self._world, now):
                fresh = pool.unused(victim) and self._is_wanted(pool, victim)
                # A few experts may have just come and wait for their turn; other experts leave instead of them.
                early = fresh and len(spared) < self._early[pool.id]
                if eviction.spares(victim, expert) and not early:
                    break
                if victim in keep or not pool.evictable(victim):
                    continue
                if fresh:
                    spared.append(victim)
                    continue
                victims.append(victim)
                missing -= pool.size(victim)
                if missing <= 0:
                    break
        if missing > 0 and why is Why.DEMAND and not pool.is_pinned() and not pool.is_moving():
            while spared and missing > 0:
                victims.append(spared.pop(0))
                missing -= pool.size(victims[-1])
        if missing > 0:
            return False
        for victim in victims:
            cache = self._cache_of(pool)
            passage = cache.leave(victim, pool.size(victim), expert) if cache is not None else Passage(Tier.DISK)
            pool.leave(victim)
            self._emit(Evict(pool.id, victim, passage.keep, passage.drops))
        pool.plan(expert, size, why, self._world.source(pool.device, expert))
        self.issue()
        return True

    def begin(self, executor: Executor, batch: Batch, held_bytes: int, until_s: float) -> None:
        """Begin a batch on an executor, and pin its expert. Raises ValueError if `held_bytes` are not free."""
        executor.pool.pin(batch.expert, held_bytes)
        executor.begin(batch, held_bytes, until_s)

    def end(self, executor: Executor) -> Batch:
        """End the oldest batch of an executor, and unpin its expert. Raises ValueError if there is no batch."""
        flight = executor.end()
        executor.pool.unpin(flight.batch.expert, flight.held_bytes)
        self._give_up_lost(executor.pool)
        return flight.batch

    def lose(self, pool: str) -> None:
        """Drop all experts of a pool whose device is lost: at once, or after their load or batch has ended."""
        self._lost.add(pool)
        self._give_up_lost(self.pools[pool])

    def stop(self) -> None:
        """Cancel all loads that wait for room."""
        for pool in self.pools.values():
            for expert in pool.planned():
                pool.cancel(expert)

    def check(self, *, idle: bool = False) -> None:
        """Prove the books of all pools; raises AssertionError."""
        for pool in self.pools.values():
            pool.check(idle=idle)
        if self.cache is not None:
            self.cache.check(idle=idle)

    def _landed(self, pool: ModelPool, expert: str) -> None:
        if pool.why(expert) is not Why.INITIAL and (cache := self._cache_of(pool)) is not None:
            cache.landed(expert)

    def _cache_of(self, pool: ModelPool) -> HostCache | None:
        return self.cache if self.cache is not None and self.cache.serves(pool.device) else None

    def _is_wanted(self, pool: ModelPool, expert: str) -> bool:
        return any(backlog.waiting(expert) for backlog in self._backlogs[pool.id])

    def _give_up_lost(self, pool: ModelPool) -> None:
        if pool.id not in self._lost:
            return
        for expert in pool.planned():
            pool.cancel(expert)
        for expert in [expert for expert in pool.by_arrival() if pool.evictable(expert)]:
            pool.leave(expert)
            pool.release(expert)

    def _size(self, pool: ModelPool, expert: str) -> int:
        return self._world.costs(pool.device, expert).weights_bytes
