"""An expert's variant chosen at each load rather than before the run: only the simulator runs such strategies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from coe import config
from coe.scheduler.costs import Body, Tier
from coe.scheduler.events import Command, Evict, Why
from coe.scheduler.expert_state import State
from coe.scheduler.plan import Plan
from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.policies.late_binding import Ranking
from coe.scheduler.pool import ModelPool
from coe.scheduler.residency import Residency


@dataclass(frozen=True, slots=True)
class _Upgrade:
    """An expert that leaves a pool in order to come back in a finer variant."""

    pool: str
    expert: str
    variant: str


class ByLoad(Residency, ABC):
    """Chooses at each load among the variants in the cost table: those with the labels of full precision, and that."""

    varies = True

    def __init__(self, plan: Plan, eviction: str | type[Eviction], emit: Callable[[Command], None]) -> None:
        super().__init__(plan, eviction, emit)
        self._upgrade: _Upgrade | None = None
        # By pool: the experts that came in a lesser variant, the likeliest first.
        self._lesser: defaultdict[str, Ranking] = defaultdict(Ranking)

    @abstractmethod
    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        """Return the variant of a load, from disk into a pool, of an expert that has a choice.

        With `Why.UPGRADE` the expert is in the pool in a lesser variant, the disk is idle, and there is room: if the
        answer is the variant that it has, nothing happens.
        """

    def loaded(self, pool: str, expert: str) -> None:
        """Note that a load has ended well, and whether its expert could be finer."""
        super().loaded(pool, expert)
        if self._is_lesser(self.pools[pool], expert):
            self._lesser[pool].put(expert, -self._world.demand.usage(expert))

    def evicted(self, pool: str, expert: str) -> None:
        """Note that an evicted expert is gone; plan its load if it left to come back finer."""
        super().evicted(pool, expert)
        upgrade = self._upgrade
        if upgrade is None or (upgrade.pool, upgrade.expert) != (pool, expert):
            return
        self._upgrade, book = None, self.pools[pool]
        if expert not in self._world.graph.experts:
            return
        cost = self._cost(book, expert, upgrade.variant)
        if not book.missing_bytes(book.needs(cost)):
            if self.cache is not None and not self.cache.is_going_up(expert):
                self.cache.forget(expert)
            book.plan(expert, cost.weights_bytes, Why.UPGRADE, variant=upgrade.variant, body=cost.body)

    def lose(self, pool: str) -> None:
        """Drop all experts of a pool whose device is lost."""
        if self._upgrade is not None and self._upgrade.pool == pool:
            self._upgrade = None
        super().lose(pool)

    def stop(self) -> None:
        """Cancel all loads that wait; the expert that leaves stays away."""
        self._upgrade = None
        super().stop()

    def use_idle_disk(self, now: float) -> None:
        """Fill host memory; then replace the likeliest expert in a lesser variant by the one that `choose` says.

        That happens one expert at a time, while no stage waits and nothing is loaded, if there is room without evicting
        another expert, and if no stage runs on the expert.
        """
        super().use_idle_disk(now)
        if self._upgrade is not None or not any(self._lesser.values()) or self.is_loading():
            return
        if any(len(backlog) for backlog in self._world.backlogs()):
            return
        for pool in self.pools.values():
            ranking = self._lesser[pool.id]
            for expert in [expert for expert in ranking if not self._is_lesser(pool, expert)]:
                ranking.drop(expert)
            for expert in islice(ranking, config.LOAD_CANDIDATES):
                variant = self.choose(expert, pool, Why.UPGRADE, now)
                cost = self._cost(pool, expert, variant)
                is_finer = cost.whole_bytes > self._cost(pool, expert, pool.variant(expert)).whole_bytes
                is_idle = pool.evictable(expert) and not self._world.demand.open(expert)
                more = pool.needs(cost) - pool.frees(expert)
                if is_finer and is_idle and not pool.missing_bytes(more):
                    self._upgrade = _Upgrade(pool.id, expert, variant)
                    self._evict(pool, expert)
                    return

    def _is_lesser(self, pool: ModelPool, expert: str) -> bool:
        if pool.state(expert) is not State.READY or pool.id in self._lost or expert not in self._world.graph.experts:
            return False
        variants = self._world.costs.variants(expert)
        return bool(variants) and pool.variant(expert) != variants[0]

    def _evict(self, pool: ModelPool, victim: str, wanted: str | None = None, staying_body: Body | None = None) -> None:
        if self._upgrade is not None and (self._upgrade.pool, self._upgrade.expert) == (pool.id, victim):
            # Its copy in host memory, if there is one, is of the lesser variant.
            self._emit(Evict(pool.id, victim, body=pool.leave(victim)))
        else:
            super()._evict(pool, victim, wanted, staying_body)

    def _variant(self, pool: ModelPool, expert: str, why: Why, now: float) -> str:
        """Return the variant of a load: a copy in host memory is loaded as it is, because it is there at once."""
        if not self._world.costs.variants(expert):
            return super()._variant(pool, expert, why, now)
        if why not in (Why.INITIAL, Why.FILL) and self._world.source(pool.device, expert) is Tier.HOST:
            assert self.cache is not None
            return self.cache.variant(expert)
        return self.choose(expert, pool, why, now)


class OnMiss(ByLoad):
    """HOBBIT's low precision at a miss (section 3.2): the coarsest variant at every load of the run; no upgrades.

    HOBBIT weighs by the gate's output how much an expert matters to a token. A component has one expert for a step, so
    none matters less than another here; what counts is that the coarse variant was measured to say the same labels.
    """

    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        """Return full precision before the run begins, else the coarsest variant."""
        variants = self._world.costs.variants(expert)
        return variants[0] if why is Why.INITIAL else variants[-1]


class Urgent(ByLoad):
    """The coarsest variant if stages wait for another absent expert too, or if its stages are in a hurry.

    An expert that is waited for alone holds up nobody else, so it is loaded in full precision: then none of its
    findings needs a second look. Where it was urgent the expert is upgraded once the disk is idle.
    """

    def watch(self, world: World) -> None:
        """Take the world, as the base class does."""
        super().watch(world)
        self._changed = world.demand.subscribe()
        self._all_backlogs = world.backlogs()
        self._absent: set[str] = set()

    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        """Return full precision for the first experts and where nobody else waits, else the coarsest variant."""
        self._catch_up()
        variants = self._world.costs.variants(expert)
        alone = not self._absent - {expert}
        if why is Why.INITIAL or (alone and not self._is_hurried(expert)):
            return variants[0]
        # Once the disk is idle nothing is waited for, so an upgrade never comes here.
        return variants[-1]

    def _is_hurried(self, expert: str) -> bool:
        groups = (backlog.first(expert) for backlog in self._all_backlogs)
        return any(group.due_s < math.inf for group in groups if group is not None)

    def _catch_up(self) -> None:
        pools = [executor.pool for executor in self._world.executors.values()]
        for expert in self._changed:
            waits = any(backlog.waiting(expert) for backlog in self._all_backlogs)
            if waits and not any(expert in pool for pool in pools):
                self._absent.add(expert)
            else:
                self._absent.discard(expert)
        self._changed.clear()
