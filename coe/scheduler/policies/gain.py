"""The next load is the absent expert that gains most for each second of its load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler import policies
from coe.scheduler.backlog import Group
from coe.scheduler.costs import Cost
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Need, Prefetch, World
from coe.scheduler.policies.late_binding import Ranking


class Gain(Prefetch):
    """The gain of an expert is the number of its waiting stages; stages that are expected later reduce it.

    An expert that more images are likely to need should wait for them, and then run them all in one stay. But while
    there is room, no expert leaves, and the expert whose stages have waited longest comes first.
    Stages in a hurry go first, by due time. A device leaves an expert to another device that would be done with it
    sooner, even after loading another expert first. A device also loads an expert of the pool that would finish last of
    all, if that ends its work sooner.

    While no stage waits for an absent expert, foreseen experts are loaded in the order of their places, for a short
    time ahead: what is loaded early takes the place of something. The expert goes to the device that gives up least for
    it, among those that run an image in less time than a load takes.
    """

    needs = frozenset({Need.SHARED_BACKLOG})
    gives = frozenset({Need.LOADS, Need.FORESIGHT})

    def watch(self, world: World) -> None:
        self._world = world
        self._changed = world.demand.subscribe()
        self._holders = {executor.pool.id: executor for executor in world.executors.values()}
        self._executors = Counter(executor.pool.id for executor in world.executors.values())
        (self._backlog,) = world.backlogs()
        self._hurried = Ranking()
        self._oldest = Ranking()
        # By pool and tier.
        self._order = {
            id: {tier: Ranking() for tier in world.tiers(holder.device)} for id, holder in self._holders.items()
        }
        # Only devices are compared by their work: with one device there is nothing to compare.
        self._work = {id: WaitingWork() for id in self._holders} if len(self._holders) > 1 else {}
        # The predicted loads of experts that stages wait for and that are in no pool.
        self._loads_s: dict[str, float] = {}
        self._absent_s = 0.0
        # Foreseen experts that are in no pool, by their next place.
        self._foreseen = Ranking()

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        if self._changed:
            self._catch_up()
        if self._loads_s:
            yield from islice(self._hurried, config.PREFETCH_GROUPS)
            yield from self._to_fill(executor)
        yield from self._to_share(executor)
        if not self._loads_s:
            return
        for order in self._order[executor.pool.id].values():
            for expert in islice(order, config.LOAD_CANDIDATES):
                if not self._is_left_to_another(executor, expert):
                    yield expert

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        if self._changed:
            self._catch_up()
        if self._loads_s:
            return
        for expert in islice(self._foreseen, config.LOAD_CANDIDATES):
            place = world.foresight.next_place(expert)
            if place is None or place > world.foresight.horizon():
                return
            if self._best_pool(expert, now) == executor.pool.id:
                yield expert

    def _best_pool(self, expert: str, now: float) -> str:
        """Return the pool whose next expert to leave is needed last; of equals that of the quicker device."""
        costs = {id: self._world.costs(self._holders[id].device, expert) for id in self._able(expert)}
        return max(costs, key=lambda id: (self._gives_up(id, costs[id], now), -costs[id].batch_s(1)))

    def _able(self, expert: str) -> list[str]:
        """Return the pools of the devices that run an image in less time than a load and the run take elsewhere."""
        runs_s, loads_s = {}, []
        for id, holder in self._holders.items():
            runs_s[id] = self._world.costs(holder.device, expert).batch_s(1)
            loads_s.append(runs_s[id] + self._world.switch_s(holder.pool, expert))
        return [id for id, run_s in runs_s.items() if run_s <= min(loads_s)]

    def _gives_up(self, id: str, cost: Cost, now: float) -> float:
        """Return at which image from now the next expert to leave a pool is needed; infinity if there is room."""
        pool = self._holders[id].pool
        if not pool.missing_bytes(pool.needs(cost)):
            return math.inf
        first = next(filter(pool.evictable, policies.leaving(self._world, pool, now)), None)
        return 0.0 if first is None else self._world.images_until(first)

    def _to_fill(self, executor: Executor) -> Iterator[str]:
        """Yield the expert whose stages have waited longest, if no other expert must leave for it."""
        expert = next(iter(self._oldest), None)
        if expert is None:
            return
        if executor.pool.missing_bytes(executor.pool.needs(self._world.costs(executor.device, expert))):
            return
        if not self._is_left_to_another(executor, expert):
            yield expert

    def _to_share(self, executor: Executor) -> Iterator[str]:
        """Yield the expert with most work on another device, if that device ends last and this would end it sooner."""
        for id, work in self._work.items():
            if id != executor.pool.id and work.parts and self._ready_s(id) > self._absent_s:
                expert = next(iter(work.parts))
                cost = self._world.costs(executor.device, expert)
                switch_s = self._world.switch_s(executor.pool, expert)
                here_s = self._ready_s(executor.pool.id) + switch_s + cost.batch_s(self._backlog.waiting(expert))
                if expert not in executor.pool and self._ready_s(id) > self._absent_s + here_s:
                    yield expert

    def _is_left_to_another(self, executor: Executor, expert: str) -> bool:
        if len(self._holders) == 1:
            return False
        stages = round(self._backlog.waiting(expert) + self._later(expert))
        here_s = another_s = math.inf
        for id, holder in self._holders.items():
            switch_s = self._world.switch_s(holder.pool, expert)
            run_s = self._world.costs(holder.device, expert).batch_s(stages)
            if id == executor.pool.id:
                here_s = self._ready_s(id) + switch_s + run_s
            else:
                another_s = min(another_s, self._ready_s(id) + switch_s + switch_s + run_s)
        return another_s < here_s

    def _ready_s(self, pool: str) -> float:
        return self._work[pool].seconds / self._executors[pool]

    def _later(self, expert: str) -> float:
        demand = self._world.demand
        return config.OUTLOOK_IMAGES * demand.usage(expert) + demand.coming(expert)

    def _catch_up(self) -> None:
        foresees = bool(self._foreseen) or (bool(self._changed) and self._world.foresight.foresees())
        for expert in self._changed:
            if foresees:
                self._foresee(expert)
            group = self._backlog.first(expert)
            here = {id for id, holder in self._holders.items() if expert in holder.pool} if group is not None else ()
            load_s = self._loads_s.pop(expert, None)
            if load_s is not None:
                # Rounding must not pile up over weeks of stages.
                self._absent_s = self._absent_s - load_s if self._loads_s else 0.0
            if group is not None and not here:
                self._want(group)
            elif load_s is not None:
                self._forget(expert)
            for id, work in self._work.items():
                if id in here:
                    cost = self._world.costs(self._holders[id].device, expert)
                    work.put(expert, cost.batch_s(self._backlog.waiting(expert)) / len(here))
                else:
                    work.drop(expert)
        self._changed.clear()

    def _want(self, group: Group) -> None:
        """Rank an expert that stages wait for and that is in no pool."""
        expert = group.expert
        gain = self._backlog.waiting(expert) / (1 + self._later(expert))
        load_s = math.inf
        for id, holder in self._holders.items():
            switch_s = self._world.switch_s(holder.pool, expert)
            source = self._world.source_for(holder.pool, expert)
            load_s = min(load_s, switch_s)
            for tier, order in self._order[id].items():
                if tier is source:
                    order.put(expert, -gain / max(switch_s, 1e-9), group.since_s)
                else:
                    order.drop(expert)
        self._loads_s[expert] = load_s
        self._absent_s += load_s
        self._oldest.put(expert, group.since_s)
        if group.due_s < math.inf:
            self._hurried.put(expert, group.due_s)
        else:
            self._hurried.drop(expert)

    def _foresee(self, expert: str) -> None:
        place = self._world.foresight.next_place(expert)
        if place is None or any(expert in holder.pool for holder in self._holders.values()):
            self._foreseen.drop(expert)
        else:
            self._foreseen.put(expert, place)

    def _forget(self, expert: str) -> None:
        """Forget an expert that stages waited for and that was in no pool."""
        for orders in self._order.values():
            for order in orders.values():
                order.drop(expert)
        self._hurried.drop(expert)
        self._oldest.drop(expert)


class WaitingWork:
    """The work that waits for the experts of a pool, in seconds; `parts` ranks the experts, the most work first."""

    def __init__(self) -> None:
        self.parts = Ranking()
        self.seconds = 0.0
        self._by_expert: dict[str, float] = {}

    def put(self, expert: str, seconds: float) -> None:
        """Set the work that waits for an expert."""
        self.drop(expert)
        self._by_expert[expert] = seconds
        self.parts.put(expert, -seconds)
        self.seconds += seconds

    def drop(self, expert: str) -> None:
        """Forget the work that waits for an expert, if there is any."""
        if (seconds := self._by_expert.pop(expert, None)) is not None:
            self.parts.drop(expert)
            # Rounding must not pile up over weeks of stages.
            self.seconds = self.seconds - seconds if self._by_expert else 0.0
