"""The owner of all pools: it decides which experts come and which leave. Policies rank them.

Numbers in brackets are those at the head of `coe.scheduler.pool`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from coe.core import Batch
from coe.scheduler import policies
from coe.scheduler.costs import Tier
from coe.scheduler.events import Command, Evict, Fill, Load, Why
from coe.scheduler.executor import Executor, Flight
from coe.scheduler.host_cache import HostCache, Passage
from coe.scheduler.plan import Plan
from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.pool import ModelPool, State


class Residency:
    """Brings experts into the pools, and lets others leave for them: all pools of a run, and the host cache if the plan
    has one. `emit` takes the commands.
    """

    def __init__(self, plan: Plan, eviction: str | type[Eviction], emit: Callable[[Command], None]) -> None:
        self.pools = {spec.id: ModelPool(spec) for spec in plan.pools}
        self.cache = HostCache(plan.cache) if plan.cache else None
        self._emit = emit
        self._lost: set[str] = set()
        self.evictions: dict[str, Eviction] = {}
        self._eviction = eviction
        self._guessed: set[tuple[str, str]] = set()
        self.is_overfull = False
        """Whether experts may take more than other rules leave them: see `shrink`."""
        self._unread: deque[str] = deque()
        self._initial: deque[str] = deque()

    def watch(self, world: World) -> None:
        """Take the world: before anything is loaded, and again with other rules.

        The policies are made for it, and told of the experts that are here.
        """
        self._world = world
        self._backlogs = {id: world.backlogs(id) for id in self.pools}
        self._tiers = {id: world.tiers(pool.device) for id, pool in self.pools.items()}
        self.evictions.update({id: policies.make("eviction", self._eviction) for id in self.pools})
        if self.cache is not None:
            self._unread = deque(world.graph.by_probability)
        # Foreseen experts first.
        self._initial = deque(dict.fromkeys([*world.foresight.in_order(), *world.graph.by_probability]))
        self._turn = list(self.pools.values())
        self._least_bytes = {
            pool.device: min(world.costs(pool.device, expert).weights_bytes for expert in world.graph.experts)
            for pool in self._turn
        }
        self._early = {id: world.loads_ahead(pool.device) for id, pool in self.pools.items()}
        for id, pool in self.pools.items():
            self.evictions[id].watch(pool, world)
            pool.tell(self.evictions[id], world.demand)
            for expert in pool.named():
                self.evictions[id].entered(expert)
                if pool.state(expert) is State.READY:
                    self.evictions[id].loaded(expert)
        if self.cache is not None:
            self.cache.tell(world.demand.changed)

    def change(self, world: World, plan: Plan) -> None:
        """Take a world of other rules, and the pools of a plan; experts that no rule names leave at once.

        An expert that is still being loaded leaves when it has come.
        """
        for pool in self.pools.values():
            pool.name(world.graph.experts)
            for expert in pool.planned():
                if expert not in world.graph.experts:
                    pool.cancel(expert)
        self.watch(world)
        for spec in plan.pools:
            self.pools[spec.id].resize(spec)
        self.is_overfull = True
        if self.cache is not None:
            self.cache.release(expert for expert in self.cache.copies() if expert not in world.graph.experts)
        for pool in self.pools.values():
            self._let_go(pool)

    def shrink(self, now: float) -> None:
        """Let experts leave until each pool leaves its workspace to activations (6); those that run, when they have."""
        self.is_overfull = False
        for pool in self.pools.values():
            if pool.id in self._lost or not pool.missing_bytes(0):
                continue
            for victim in list(policies.leaving(self._world, pool, now)):
                if pool.missing_bytes(0) and pool.evictable(victim):
                    self._evict(pool, victim)
            self.is_overfull = self.is_overfull or pool.missing_bytes(0) > 0

    def load_initial(self, now: float) -> None:
        """Begin the load of the next expert that fits into a pool without another leaving, if nothing is read.

        Foreseen experts come first, in the order of their places, then experts by falling usage probability, in the
        pools in turn (paper section 4.1). One load at a time, so that an expert that is wanted waits for no more than
        the load under way. Each expert is considered once.
        """
        if not self._initial or self.is_reading():
            return
        pools = [pool for pool in self._turn if pool.id not in self._lost]
        while self._initial:
            expert = self._initial[0]
            # An expert that came on demand, and is leaving by now, counts as considered.
            if all(pool.state(expert) is None for pool in pools):
                for pool in pools:
                    needed = self._bytes(pool, expert)
                    if not pool.has_room(needed):
                        continue
                    if pool.has_planned() or pool.missing_bytes(needed):
                        return  # running batches hold its bytes for now
                    self._initial.popleft()
                    pool.plan(expert, needed, Why.INITIAL)
                    self.issue(now)
                    self._turn.remove(pool)
                    self._turn.append(pool)
                    return
            self._initial.popleft()

    def lacks_initial(self) -> bool:
        """Return whether an initial load is under way, or will be once nothing else is loaded."""
        for pool in self.pools.values():
            if pool.is_moving_for(Why.INITIAL):
                return True
            # Other loads may take turns without end: a full pool is filled, whatever has not been considered yet.
            if self._initial and pool.id not in self._lost and pool.has_room(self._least_bytes[pool.device]):
                return True
        return False

    def learned(self) -> None:
        """Note that an image or a finding has come.

        Until then a guess does not replace an earlier guess, or two of them would replace each other for ever.
        """
        self._guessed.clear()

    def withdraw(self) -> None:
        """Take planned speculative loads back, unless stages wait for their experts by now.

        Loads that have begun go on, and experts that leave to make room for a load that is taken back leave all the
        same.
        """
        for pool in self.pools.values():
            for expert in pool.planned() if pool.has_planned() else ():
                if pool.why(expert) is Why.SPECULATIVE and not self._is_wanted(pool, expert):
                    pool.cancel(expert)

    def use_idle_disk(self, now: float) -> None:
        """Let an idle disk read the likeliest expert that lies nowhere into host memory, for the devices behind it.

        The cache is filled only while nothing is loaded. Each expert is considered once: an expert that a device holds
        goes down when it leaves, if the cache demotes.
        """
        if self.cache is None or not self._unread or self.is_loading():
            return
        served = [pool for pool in self.pools.values() if self.cache.serves(pool.device) and pool.id not in self._lost]
        while served and self._unread:
            expert = self._unread.popleft()
            if expert in self.cache or any(expert in pool for pool in served):
                continue
            if self.cache.begin_fill(expert, self._bytes(served[0], expert)):
                self._emit(Fill(served[0].device, expert))
                return

    def make_room(self, pool: ModelPool, expert: str, why: Why, staying: Collection[str], now: float) -> bool:
        """Evict until an expert fits, and plan its load; evict nothing and return False if it cannot fit.

        An expert that was loaded and has not run yet stays while stages wait for it, unless the pool would stand still.
        One that came on demand stays even then (5).
        """
        missing = pool.missing_bytes(self._bytes(pool, expert))
        victims: list[str] = []
        waiting: list[str] = []
        if missing > pool.evictable_bytes:
            return False
        if missing:
            eviction = self.evictions[pool.id]
            for victim in policies.leaving(self._world, pool, now):
                fresh = pool.unused(victim) and self._is_wanted(pool, victim)
                # A few experts may have just come and wait for their turn; other experts leave instead of them.
                early = fresh and len(waiting) < self._early[pool.id]
                if eviction.stays(victim, expert, why) and not early:
                    break
                if victim in staying or not pool.evictable(victim) or self._outweighs_a_guess(pool, victim, why):
                    continue
                if fresh:
                    waiting.append(victim)
                    continue
                missing -= pool.size(victim)
                victims.append(victim)
                if missing <= 0:
                    break
        if missing > 0 and why is Why.DEMAND and not pool.is_pinned() and not pool.is_moving():
            for victim in waiting:
                if missing > 0 and victim not in pool.untried():
                    missing -= pool.size(victim)
                    victims.append(victim)
        if missing > 0:
            return False
        self._replace(pool, victims, expert, why, now)
        return True

    def force_room(self, pool: ModelPool, expert: str, now: float) -> bool:
        """Evict the least recently used until an expert fits, whatever the eviction policy would keep; plan its load.

        For a pool that stands still. An expert that came on demand stays until it has run (5).
        """
        missing, victims = pool.missing_bytes(self._bytes(pool, expert)), list[str]()
        for victim in pool.by_recency():
            if missing > 0 and not (victim in pool.untried() and self._is_wanted(pool, victim)):
                missing -= pool.size(victim)
                victims.append(victim)
        if missing > 0:
            return False
        self._replace(pool, victims, expert, Why.DEMAND, now)
        return True

    def _replace(self, pool: ModelPool, victims: Collection[str], expert: str, why: Why, now: float) -> None:
        """Let the victims leave, and plan the load of an expert in their place."""
        for victim in victims:
            self._evict(pool, victim, expert)
        pool.plan(expert, self._bytes(pool, expert), why, self._world.source(pool.device, expert))
        if why is Why.SPECULATIVE:
            self._guessed.add((pool.id, expert))
        self.issue(now)

    def _outweighs_a_guess(self, pool: ModelPool, victim: str, why: Why) -> bool:
        """Return whether a load is a guess, and its victim is waited for or is no older guess."""
        return why is Why.SPECULATIVE and ((pool.id, victim) in self._guessed or self._is_wanted(pool, victim))

    def stop(self) -> None:
        """Cancel all loads that wait for room, or for an expert to leave first."""
        self._initial.clear()
        for pool in self.pools.values():
            for expert in pool.planned():
                pool.cancel(expert)

    # On the way: the commands, and what the books note of them

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
        return [tier for tier in self._tiers[pool.id] if not pool.is_moving_from(tier)]

    def issue(self, now: float) -> None:
        """Reserve the bytes of planned experts for which there is room by now, and emit their `Load` (3).

        With a host cache, the books of copies change, too.
        """
        for pool in self.pools.values():
            for expert in pool.to_reserve():
                if not pool.reserve(expert):
                    break
                self._begin_load(pool, expert, now)

    def _begin_load(self, pool: ModelPool, expert: str, now: float) -> None:
        why = pool.why(expert)
        if why is Why.SPECULATIVE and self._is_wanted(pool, expert):
            why = Why.PREFETCH
        passage = Passage(Tier.DISK)
        if why is not Why.INITIAL and (cache := self._cache_of(pool)) is not None:
            passage = cache.fetch(expert, pool.size(expert))
        pool.moves(expert, passage.source, now)
        self._emit(Load(pool.id, expert, why, passage.source, passage.keep_copy, passage.drops))

    def fetched(self, pool: str, expert: str, now: float) -> None:
        """Note that an expert on its way has been read from disk."""
        self.pools[pool].moves(expert, Tier.HOST, now)

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
