"""Late binding: no stage is bound to an executor. An idle executor takes any group whose expert is in its pool."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import islice

from coe import config
from coe.helpers.arithmetic import added
from coe.scheduler import policies
from coe.scheduler.backlog import Backlog, Group
from coe.scheduler.costs import Cost
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Arrange, Assign, Need, Prefetch, Select, World
from coe.scheduler.policies.ranking import Ranking, WaitingWork
from coe.scheduler.pool import ModelPool, State

_YOUNGEST_S = 0.1
"""This is added to ages: among images that have just come the gain alone decides."""
_URGENCY = 3
"""The power of an age in the ranking of loads: the higher, the shorter the longest waits, and the longer the others."""
_LONG = 0.25
"""The share of all loads that are waited for over which a group takes long: with more, who never leaves waits longer.
"""
_CLEARLY = 1 - 1e-9
"""So far apart are two times that are not equal but for rounding."""


class Devices:
    """The devices of a line, compared: how much work waits for each, and where a batch would end first.

    A device is fit for an expert if it runs an image in less time than a load and the run take on another device. An
    expert is absent, and stages that wait for it wait for a load, as long as no fit device has it in its pool.

    Each policy that compares devices has a `Devices`, and calls `note` for each expert whose numbers have changed. With
    one device there is nothing to compare, and hardly anything is kept.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        (self._backlog,) = world.backlogs()
        self._teams: dict[str, list[Executor]] = {}
        for executor in world.executors.values():
            self._teams.setdefault(executor.pool.id, []).append(executor)
        self.several = len(self._teams) > 1
        self.work = {id: WaitingWork() for id in self._teams} if self.several else {}
        """By pool."""
        self.loads_s: dict[str, float] = {}
        """The predicted loads of the absent experts that stages wait for."""
        self.absent_s = 0.0
        """The sum of these loads."""

    def fit(self, expert: str) -> list[str]:
        """Return the pools of the devices that are fit for an expert; the quickest device always is."""
        runs_s = {id: self._world.costs(team[0].device, expert).batch_s(1) for id, team in self._teams.items()}
        loads_s = (run_s + self._world.switch_s(self._teams[id][0].pool, expert) for id, run_s in runs_s.items())
        least_s = min(loads_s)
        return [id for id, run_s in runs_s.items() if run_s <= least_s]

    def is_absent(self, expert: str) -> bool:
        """Return whether no fit device has an expert, or is loading it."""
        return self._is_absent(expert, self._holders(expert))

    def note(self, expert: str, waiting: int) -> list[str]:
        """Take in that so many stages wait for an expert, and where it is; return the pools that have it, if any do."""
        holders = self._holders(expert) if waiting else []
        is_absent = waiting > 0 and self._is_absent(expert, holders)
        if (load_s := self.loads_s.pop(expert, None)) is not None:
            # Rounding must not pile up over weeks of stages.
            self.absent_s = self.absent_s - load_s if self.loads_s else 0.0
        if is_absent:
            pools = [team[0].pool for id, team in self._teams.items() if id not in holders]
            load_s = self.loads_s[expert] = min(self._world.switch_s(pool, expert) for pool in pools)
            self.absent_s += load_s
        if self.several:
            self._share_out(expert, waiting, () if is_absent else holders)
        return holders

    def _holders(self, expert: str) -> list[str]:
        return [id for id, team in self._teams.items() if expert in team[0].pool]

    def _is_absent(self, expert: str, holders: Collection[str]) -> bool:
        if not holders or len(holders) == len(self._teams):
            return not holders
        return not any(id in holders for id in self.fit(expert))

    def _share_out(self, expert: str, waiting: int, holders: Collection[str]) -> None:
        """Note the work that waits for an expert at each of its holders."""
        shares_s = {}
        if waiting and holders:
            # Each holder takes the share with which all of them end together.
            costs = {id: self._world.costs(self._teams[id][0].device, expert) for id in holders}
            shares_s = {id: cost.batches_s(waiting) / len(self._teams[id]) for id, cost in costs.items()}
            together_s = 1 / added(1 / max(share_s, 1e-12) for share_s in shares_s.values())
        for id, work in self.work.items():
            if id in shares_s:
                work.put(expert, together_s * len(self._teams[id]))
            else:
                work.drop(expert)

    def ready_s(self, pool: str, now: float) -> float:
        """Return the seconds until all executors of a pool have done what runs and what waits for its experts."""
        team = self._teams[pool]
        return (self.work[pool].seconds + added(executor.idle_from_s(now) - now for executor in team)) / len(team)

    def ends_sooner_elsewhere(self, executor: Executor, group: Group, now: float) -> bool:
        """Return whether another device would have run a whole group before this executor ends its next batch.

        The other device has the expert, or is going to load it because it is absent. All of the group counts: a batch
        that runs here lets those behind it begin sooner there.
        """
        expert = group.expert
        cost = self._world.costs(executor.device, expert)
        here_s = executor.idle_from_s(now) - now + cost.batch_s(min(len(group), cost.max_batch))
        for id, team in self._teams.items():
            if id == executor.pool.id or not (expert in team[0].pool or expert in self.loads_s):
                continue
            cost, others_s = self._world.costs(team[0].device, expert), 0.0
            if group.due_s == math.inf:
                others_s = self.work[id].seconds - self.work[id].of(expert)
            begins_s = min(other.idle_from_s(now) for other in team) - now + others_s / len(team)
            pool = team[0].pool
            if expert not in pool:
                begins_s = max(begins_s, self.absent_s, self._world.switch_s(pool, expert))
            elif pool.state(expert) is not State.READY:
                begins_s = max(begins_s, self._world.comes_in_s(pool, expert, now))
            if begins_s + cost.batches_s(len(group)) / len(team) < _CLEARLY * here_s:
                return True
        return False


class Shared(Assign):
    """Returns any executor, because all of them have the same backlog."""

    gives = frozenset({Need.SHARED_BACKLOG})

    def choose(self, expert: str, world: World, now: float) -> str:
        return next(iter(world.executors))


class GroupByExpert(Arrange):
    """A stage joins the group of its expert, however long the group has been running."""

    needs = frozenset({Need.DUE_FIRST})

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return True


class Ready(Select):
    """The full batch that has waited longest, then batches by size: a batch that is not full may still grow.

    Groups in a hurry go first, by due time. While stages wait for absent experts, the group of the next expert to leave
    for them goes before the rest, so that no load waits for room; but not before a full batch whose group takes long,
    which would never run if its expert never leaves. Of several devices each takes only what it ends sooner than any
    other (`Devices`).
    """

    needs = frozenset({Need.SHARED_BACKLOG, Need.LOADS})
    gives = frozenset({Need.RESIDENT_FIRST, Need.DUE_FIRST})

    def watch(self, world: World) -> None:
        self._world = world
        self._changed = world.demand.subscribe()
        (self._backlog,) = world.backlogs()
        self._holders = {executor.pool.id: executor for executor in world.executors.values()}
        self._devices = Devices(world)
        self._fullest = {id: Ranking() for id in self._holders}
        self._hurried = {id: Ranking() for id in self._holders}
        self._absent: dict[str, Group] = {}
        self._absent_hurried = Ranking()
        self._hurrying: set[str] = set()
        self._ahead = {holder.device: world.loads_ahead(holder.device) for holder in self._holders.values()}
        self._largest_bytes = {
            executor.device: max(world.costs(executor.device, expert).weights_bytes for expert in world.graph.experts)
            for executor in world.executors.values()
        }

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        if self._changed:
            self._catch_up()
        ranked = self._ranked(executor, now)
        if not self._devices.several:
            return ranked
        return (group for group in ranked if not self._devices.ends_sooner_elsewhere(executor, group, now))

    def _ranked(self, executor: Executor, now: float) -> Iterator[Group]:
        """Yield groups in order of preference, on whichever device they would end first."""
        pool, id = executor.pool, executor.pool.id
        if not any(map(pool.is_ready, self._fullest[id])):
            return
        blockers = list(self._blocking(executor, now)) if self._absent else []
        leaving = list(filter(partial(self._must_leave, pool), blockers))
        for expert in self._hurried[id] if self._hurrying else ():
            if (group := _group(executor, expert)) not in leaving:
                yield group
        first = blockers[:1] if blockers and blockers[0] not in leaving and blockers[0].due_s == math.inf else []
        if first:
            first = [*(group for group in self._outweighing(executor, first[0]) if group not in leaving), *first]
        yield from first
        elsewhere = first + leaving
        for expert in self._fullest[id]:
            if (group := _group(executor, expert)) not in elsewhere and group.due_s == math.inf:
                yield group

    def _outweighing(self, executor: Executor, blocking: Group) -> Iterator[Group]:
        """Yield the full batch that has waited longest, if it came before the blocking group, and its group takes long.

        Then the executor is what holds the line up, and not the room for the next load.
        """
        id, pool = executor.pool.id, executor.pool
        group = next(_group(executor, expert) for expert in self._fullest[id] if pool.is_ready(expert))
        cost = self._world.costs(executor.device, group.expert)
        is_long = cost.batches_s(len(group)) > _LONG * self._devices.absent_s
        if group.since_s < blocking.since_s and group.due_s == math.inf and len(group) >= cost.max_batch and is_long:
            yield group

    def _must_leave(self, pool: ModelPool, blocking: Group) -> bool:
        """Return whether the blocking group's expert must leave now: it has run, and an absent group is due earlier."""
        if not self._absent_hurried or pool.unused(blocking.expert):
            return False
        return self._absent[next(iter(self._absent_hurried))].due_s < blocking.due_s

    def _blocking(self, executor: Executor, now: float) -> Iterator[Group]:
        """Yield the group of the next expert to leave that has waiting stages, if there is no room without it.

        If images in a hurry wait for absent experts, all such groups follow that must leave before there is room.
        """
        # Room is made for the loads after the present load, or after the load that begins once this executor is busy.
        # So the disk never waits for the end of a long batch.
        pool = executor.pool
        loads = min(len(self._absent), self._ahead[executor.device] + (0 if pool.is_moving() else 1))
        missing = pool.missing_bytes(loads * self._largest_bytes[executor.device])
        for expert in policies.leaving(self._world, pool, now):
            if missing <= 0:
                return
            if not pool.is_ready(expert):
                continue
            if executor.backlog.waiting(expert):
                yield _group(executor, expert)
                if not self._absent_hurried:
                    return
            missing -= pool.size(expert)

    def _catch_up(self) -> None:
        for expert in self._changed:
            group = self._backlog.first(expert)
            waiting = 0 if group is None else self._backlog.waiting(expert)
            holders = self._devices.note(expert, waiting)
            is_absent = expert in self._devices.loads_s
            for id, executor in self._holders.items():
                if group is None or id not in holders:
                    self._fullest[id].drop(expert)
                else:
                    full = self._world.costs.stated(executor.device, expert).max_batch
                    fill = min(1.0, waiting / full)
                    self._fullest[id].put(expert, -fill, group.since_s)
            if group is None or not is_absent:
                self._absent.pop(expert, None)
            else:
                self._absent[expert] = group
            if self._hurrying or self._backlog.has_hurried:
                self._hurry(expert, math.inf if group is None else group.due_s, [] if is_absent else holders)
        self._changed.clear()

    def _hurry(self, expert: str, due_s: float, here: Collection[str]) -> None:
        """Rank an expert by when its stages are due in the pools where it is, if they are in a hurry."""
        if expert in self._hurrying:
            self._hurrying.discard(expert)
            for ranking in (self._absent_hurried, *self._hurried.values()):
                ranking.drop(expert)
        if due_s < math.inf:
            self._hurrying.add(expert)
            for ranking in [self._hurried[id] for id in here] or [self._absent_hurried]:
                ranking.put(expert, due_s)


def _group(executor: Executor, expert: str) -> Group:
    group = executor.backlog.first(expert)
    assert group is not None, f"nothing waits for '{expert}'"
    return group


class Gain(Prefetch):
    """The gain of an expert is the number of its waiting stages; stages that are expected later reduce it.

    Gain times age cubed ranks the experts: if a wait costs its fourth power, this is the generalised c-mu rule (J. van
    Mieghem, Annals of Applied Probability 5, 1995). Many stages come first, and few do not wait much longer.

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
        # The more experts there are, the more images pass before a load is needed again.
        self._outlook_images = config.GAIN_IMAGES_EACH * len(world.graph.experts)
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
        if not self._backlog.size:
            return
        if self._changed:
            self._catch_up()
        if self._devices.loads_s:
            yield from islice(self._hurried, config.PREFETCH_GROUPS)
            yield from self._to_fill(executor, now)
        yield from self._to_share(executor, now)
        if not self._devices.loads_s:
            return
        for order in self._order[executor.pool.id].values():
            for expert in islice(self._by_gain_and_age(order, now), config.LOAD_CANDIDATES):
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
            if expert is None or self._waits_longer(expert):
                continue
            alone_s = self._world.costs(executor.device, expert).batches_s(self._backlog.waiting(expert))
            begins_s = devices.ready_s(here.id, now) + self._world.switch_s(here, expert)
            # With this share both end together.
            share = min(1.0, (ends_s - begins_s) / (work.of(expert) + alone_s))
            if ends_s > devices.absent_s + begins_s + max(0.0, share) * alone_s:
                yield expert

    def _waits_longer(self, expert: str) -> bool:
        """Return whether stages that wait for an absent expert came before those that wait for this one."""
        group, (since_s, _, _) = self._backlog.first(expert), next(self._oldest.entries(), (math.inf, 0.0, ""))
        return group is not None and since_s < group.since_s

    def _is_left_to_another(self, executor: Executor, expert: str, now: float) -> bool:
        if not self._devices.several:
            return False
        stages = round(self._backlog.waiting(expert) + self._later(expert))
        here_s = another_s = math.inf
        for id, holder in self._holders.items():
            if expert in holder.pool:
                continue
            switch_s = self._world.switch_s(holder.pool, expert)
            run_s = self._world.costs(holder.device, expert).batches_s(stages)
            if id == executor.pool.id:
                here_s = self._devices.ready_s(id, now) + switch_s + run_s
            else:
                another_s = min(another_s, self._devices.ready_s(id, now) + switch_s + switch_s + run_s)
        return another_s < here_s

    def _by_gain_and_age(self, order: Ranking, now: float) -> Iterator[str]:
        """Yield the experts of a ranking by gain x age of the oldest stage cubed, the largest product first.

        Ages grow while nothing is told of them, so no ranking holds these products. Both rankings are gone through side
        by side: an expert that neither has shown yet has at most the product of where they are (R. Fagin's threshold).
        """
        shown: list[tuple[float, float, str]] = []
        seen = set[str]()
        for (least_key, _, best), (since_s, _, oldest) in zip(order.entries(), self._oldest.entries(), strict=False):
            for expert in (best, oldest):
                if expert not in seen and (key := order.key(expert)) is not None:
                    seen.add(expert)
                    of_expert_s = self._oldest.key(expert) or 0.0
                    heappush(shown, (key * (now - of_expert_s + _YOUNGEST_S) ** _URGENCY, of_expert_s, expert))
            while shown and shown[0][0] <= least_key * (now - since_s + _YOUNGEST_S) ** _URGENCY:
                yield heappop(shown)[2]
        while shown:
            yield heappop(shown)[2]

    def _later(self, expert: str) -> float:
        demand = self._world.demand
        return config.OUTLOOK_IMAGES * demand.usage(expert) + demand.coming(expert)

    def _catch_up(self) -> None:
        foresees = bool(self._foreseen) or (bool(self._changed) and self._world.foresight.foresees())
        for expert in self._changed:
            was_absent = expert in self._devices.loads_s
            self._devices.note(expert, self._backlog.waiting(expert))
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
        demand = self._world.demand
        later = self._outlook_images * demand.usage(expert) + demand.coming(expert)
        gain = self._backlog.waiting(expert) / (1 + later)
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
