"""The next load is the absent expert that gains most for each second of its load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler import policies
from coe.scheduler.costs import Cost
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Need, Prefetch, World
from coe.scheduler.policies.late_binding import Devices, Ranking


class Gain(Prefetch):
    """The gain of an expert is the number of its waiting stages; stages that are expected later reduce it.

    An expert that more images are likely to need should wait for them, and then run them all in one stay. But while
    there is room, no expert leaves, and the expert whose stages have waited longest comes first.
    Stages in a hurry go first, by due time. A device leaves an expert to another device that would be done with it
    sooner, even after loading another expert first. A device also loads an expert of another device, if that has ended
    its work sooner once each of the two takes its share of the expert.

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
        (self._backlog,) = world.backlogs()
        self._hurried = Ranking()
        self._oldest = Ranking()
        # By pool and tier.
        self._order = {
            id: {tier: Ranking() for tier in world.tiers(holder.device)} for id, holder in self._holders.items()
        }
        self._devices = Devices(world)
        # Foreseen experts that are absent, by their next place.
        self._foreseen = Ranking()

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        if self._changed:
            self._catch_up()
        if self._devices.loads_s:
            yield from islice(self._hurried, config.PREFETCH_GROUPS)
            yield from self._to_fill(executor, now)
        yield from self._to_share(executor, now)
        if not self._devices.loads_s:
            return
        for order in self._order[executor.pool.id].values():
            for expert in islice(order, config.LOAD_CANDIDATES):
                if not self._is_left_to_another(executor, expert, now):
                    yield expert

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        if self._changed:
            self._catch_up()
        if self._devices.loads_s:
            return
        for expert in islice(self._foreseen, config.LOAD_CANDIDATES):
            place = world.foresight.next_place(expert)
            if place is None or place > world.foresight.horizon():
                return
            if self._best_pool(expert, now) == executor.pool.id:
                yield expert

    def _best_pool(self, expert: str, now: float) -> str:
        """Return the pool whose next expert to leave is needed last; of equals that of the quicker device."""
        costs = {id: self._world.costs(self._holders[id].device, expert) for id in self._devices.fit(expert)}
        return max(costs, key=lambda id: (self._gives_up(id, costs[id], now), -costs[id].batch_s(1)))

    def _gives_up(self, id: str, cost: Cost, now: float) -> float:
        """Return at which image from now the next expert to leave a pool is needed; infinity if there is room."""
        pool = self._holders[id].pool
        if not pool.missing_bytes(cost.weights_bytes):
            return math.inf
        first = next(filter(pool.evictable, policies.leaving(self._world, pool, now)), None)
        return 0.0 if first is None else self._world.images_until(first)

    def _to_fill(self, executor: Executor, now: float) -> Iterator[str]:
        """Yield the expert whose stages have waited longest, if no other expert must leave for it."""
        expert = next(iter(self._oldest), None)
        if expert is None:
            return
        if executor.pool.missing_bytes(self._world.costs(executor.device, expert).weights_bytes):
            return
        if not self._is_left_to_another(executor, expert, now):
            yield expert

    def _to_share(self, executor: Executor, now: float) -> Iterator[str]:
        """Yield the expert with most work on another device, if that ends sooner once both take a share of it."""
        devices, here = self._devices, executor.pool
        for id, work in devices.work.items():
            ends_s = devices.ready_s(id, now)
            if id == here.id or not work.parts or ends_s <= devices.absent_s:
                continue
            expert = next((expert for expert in work.parts if expert not in here), None)
            if expert is None:
                continue
            alone_s = self._world.costs(executor.device, expert).batch_s(self._backlog.waiting(expert))
            begins_s = devices.ready_s(here.id, now) + self._world.switch_s(here, expert)
            # With this share both end together.
            share = min(1.0, (ends_s - begins_s) / (work.of(expert) + alone_s))
            if ends_s > devices.absent_s + begins_s + max(0.0, share) * alone_s:
                yield expert

    def _is_left_to_another(self, executor: Executor, expert: str, now: float) -> bool:
        if not self._devices.several:
            return False
        stages = round(self._backlog.waiting(expert) + self._later(expert))
        here_s = another_s = math.inf
        for id, holder in self._holders.items():
            if expert in holder.pool:
                continue
            switch_s = self._world.switch_s(holder.pool, expert)
            run_s = self._world.costs(holder.device, expert).batch_s(stages)
            if id == executor.pool.id:
                here_s = self._devices.ready_s(id, now) + switch_s + run_s
            else:
                another_s = min(another_s, self._devices.ready_s(id, now) + switch_s + switch_s + run_s)
        return another_s < here_s

    def _later(self, expert: str) -> float:
        demand = self._world.demand
        return config.OUTLOOK_IMAGES * demand.usage(expert) + demand.coming(expert)

    def _catch_up(self) -> None:
        foresees = bool(self._foreseen) or (bool(self._changed) and self._world.foresight.foresees())
        for expert in self._changed:
            was_absent = expert in self._devices.loads_s
            self._devices.note(expert)
            if foresees:
                self._foresee(expert)
            if expert in self._devices.loads_s:
                self._want(expert)
            elif was_absent:
                self._forget(expert)
        self._changed.clear()

    def _want(self, expert: str) -> None:
        """Rank an absent expert that stages wait for."""
        group = self._backlog.first(expert)
        assert group is not None, f"nothing waits for '{expert}'"
        gain = self._backlog.waiting(expert) / (1 + self._later(expert))
        for id, holder in self._holders.items():
            switch_s = self._world.switch_s(holder.pool, expert)
            source = self._world.source(holder.pool.device, expert)
            for tier, order in self._order[id].items():
                if tier is source:
                    order.put(expert, -gain / max(switch_s, 1e-9), group.since_s)
                else:
                    order.drop(expert)
        self._oldest.put(expert, group.since_s)
        if group.due_s < math.inf:
            self._hurried.put(expert, group.due_s)
        else:
            self._hurried.drop(expert)

    def _foresee(self, expert: str) -> None:
        place = self._world.foresight.next_place(expert)
        if place is None or not self._devices.is_absent(expert):
            self._foreseen.drop(expert)
        else:
            self._foreseen.put(expert, place)

    def _forget(self, expert: str) -> None:
        """Forget an absent expert that stages waited for."""
        for orders in self._order.values():
            for order in orders.values():
                order.drop(expert)
        self._hurried.drop(expert)
        self._oldest.drop(expert)
