"""Which groups run and which experts are loaded next: asked of the policies after each event.

Policies rank, the dispatcher tries in their order, and the residency counts. A step that cannot begin now is no error:
the next event asks again. After each event, in this order:

(1) Each free executor takes a group. The policy `select` ranks the groups that wait; for each of them
    (1a) the expert is ready, and a batch fits into free memory: the group runs;
    (1b) the expert is absent, and experts that may leave make room: its load is planned, and the executor waits for it,
         because no later group is worth as much;
    (1c) the expert is on its way, or there is no room: the next group is tried.
    (1d) If no group began and one lacked room, a group runs whose expert came on demand and has not run yet. Such an
         expert stays until then, and may hold up all others.
(2) While executors are busy, the policy `prefetch` ranks experts to load. Each tier is read by a lane of its own, so
    one load begins for each tier from which nothing comes. Experts that are here and rank higher do not leave for it.
(3) If all executors that share a backlog are idle, and nothing is on its way to them, policies have left stages waiting
    that could run. Policies that know each other's needs never come here. By due times, the first group runs whose
    expert is ready, else the first expert is loaded for which there is room at all, whoever leaves for it.
(4) While nothing is read from the disk, the disk serves images that have not come: what is foreseen, if nothing else
    moves (4a); the experts that pools begin with (4b); copies in host memory (4c).

So no stage waits for ever while an executor could run it: either a batch or a load is under way, whose end is an event,
or (3) begins one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from coe.core import Batch
from coe.scheduler import policies
from coe.scheduler.backlog import Group
from coe.scheduler.costs import Tier
from coe.scheduler.events import Command, Run, Why
from coe.scheduler.executor import Executor
from coe.scheduler.failures import BrokenExperts
from coe.scheduler.policies.base import Prefetch, Select, World
from coe.scheduler.pool import State
from coe.scheduler.residency import Residency
from coe.scheduler.strategies import Strategy


class Dispatcher:
    """Begins batches and plans loads by the rankings of a strategy, for as long as one of them can begin.

    `emit` takes the commands. `follow` must have been called before `dispatch`.
    """

    def __init__(
        self, strategy: Strategy, residency: Residency, broken: BrokenExperts, emit: Callable[[Command], None]
    ) -> None:
        self._strategy, self._residency, self._broken, self._emit = strategy, residency, broken, emit
        self._is_shared = strategy.shared
        self._uses_idle_disk = residency.cache is not None

    def follow(self, world: World) -> None:
        """Make the policies that rank groups and loads, for a world of other rules or with fewer executors."""
        self._world = world
        self._select: Select = policies.make("select", self._strategy.select)
        self._prefetch: Prefetch = policies.make("prefetch", self._strategy.prefetch)
        self._select.watch(world)
        self._prefetch.watch(world)
        self._looks_ahead = self._prefetch.looks_ahead()
        executors = world.executors.values()
        self._teams = [[e for e in executors if e.backlog is backlog] for backlog in world.backlogs()]

    def dispatch(self, now: float) -> None:
        """Begin all batches and loads that can begin, as this module's head says."""
        if self._residency.is_overfull:
            self._residency.shrink(now)
        self._is_idle = False
        if self._looks_ahead:
            self._residency.withdraw()
        for executor in self._world.executors.values():  # (1)
            while executor.is_free and self._feed(executor, now):
                pass
        self._load_ahead(now)  # (2)
        for team in self._teams if self._is_idle else ():
            if team[0].batch is None and team[0].backlog.size and not team[0].pool.is_moving():
                self._go_on_anyhow(team, now)  # (3)
        if self._residency.is_reading():
            return
        # Before the first image there is no pace: what is foreseen comes with the initial experts, in the same order.
        if self._looks_ahead and self._world.history.images:
            self._look_ahead(now)  # (4a)
        self._residency.load_initial(now)  # (4b)
        if self._uses_idle_disk:
            self._residency.use_idle_disk(now)  # (4c)

    def _look_ahead(self, now: float) -> None:
        """Begin a load for images that have not come (4a)."""
        if self._residency.is_loading():
            return
        for executor in self._world.executors.values():
            for expert in self._named(self._prefetch.ahead(executor, self._world, now)):
                # An expert that is still leaving cannot come back yet.
                if executor.pool.state(expert) is None and self._broken.failure(expert, now) is None:
                    if self._residency.make_room(executor.pool, expert, Why.SPECULATIVE, (), now):
                        return
                    break

    def _feed(self, executor: Executor, now: float) -> bool:
        """Give an executor its next group (1); return whether a batch began."""
        if not executor.backlog.size:
            return False
        is_held_up = is_awaited = False
        for group in self._select.rank(executor, self._world, now):
            if group not in executor.backlog:
                raise policies.no_such("select", self._select, "group that waits here", group)
            state = executor.pool.state(group.expert)
            if state is State.READY and self._run(executor, group, now):
                return True  # (1a)
            if state is None:
                if self._residency.make_room(executor.pool, group.expert, _why(executor), (), now):
                    return False  # (1b)
                is_held_up = executor.batch is None
            elif state is not State.READY:
                is_awaited = True  # (1c)
        if is_held_up and self._run_who_came(executor, now):
            return True  # (1d)
        self._is_idle = self._is_idle or (executor.batch is None and not is_awaited)
        return False

    def _run_who_came(self, executor: Executor, now: float) -> bool:
        """Run a group whose expert came on demand and has not run yet (1d); return whether a batch began."""
        groups = map(executor.backlog.first, executor.pool.untried())
        return any(group is not None and self._run(executor, group, now) for group in groups)

    def _go_on_anyhow(self, team: Sequence[Executor], now: float) -> None:
        """Let executors that share a backlog go on, whatever their policies say (3)."""
        if not all(executor.batch is None and executor.pool.is_still() for executor in team):
            return
        groups = sorted(team[0].backlog.groups(), key=lambda group: group.due_s)
        for group, executor in product(groups, team):
            if executor.pool.state(group.expert) is State.READY and self._run(executor, group, now):
                return
        for group, executor in product(groups, team):
            if executor.pool.state(group.expert) is None and self._residency.force_room(
                executor.pool, group.expert, now
            ):
                return

    def _run(self, executor: Executor, group: Group, now: float) -> bool:
        cost = self._world.costs(executor.device, group.expert)
        # What free memory allows, at most the profiled maximum (paper section 4.2).
        size = min(len(group), cost.max_batch, cost.images_in(executor.pool.batch_room_bytes()))
        if executor.backlog.has_hurried and cost.batch_bytes(size) > executor.pool.aside_bytes:
            size = min(size, cost.images_in(self._leaving_room(executor, group)))
        if size < 1:
            return False
        batch = Batch(group.expert, executor.backlog.take(group, size, now))
        until_s = executor.idle_from_s(now) + cost.batch_s(size)
        self._residency.begin(executor, batch, cost.batch_bytes(size), until_s)
        self._emit(Run(executor.id, batch))
        return True

    def _leaving_room(self, executor: Executor, group: Group) -> int:
        """Return the bytes that a batch may take without keeping out the expert of an image that is due earlier.

        Batch behind batch in more would keep it out for as long as images come.
        """
        pools = [sharer.pool for sharer in self._world.executors.values() if sharer.backlog is executor.backlog]
        earlier = (one.expert for one in executor.backlog.groups() if one.due_s < group.due_s)
        absent = (expert for expert in earlier if not any(pool.state(expert) for pool in pools))
        costs = (self._world.costs(executor.device, expert) for expert in absent)
        return executor.pool.room_beside(group.expert, costs)

    def _load_ahead(self, now: float) -> None:
        """Begin the next loads for executors that are busy, or share a backlog (2)."""
        # A lane that is busy now stays busy: only an event frees it.
        busy: set[str] = set()
        for executor in self._world.executors.values():
            if executor.pool.id in busy or (executor.batch is None and not self._is_shared):
                continue
            if idle := self._residency.idle_tiers(executor.pool):
                self._prefetch_for(executor, idle, now)
            else:
                busy.add(executor.pool.id)

    def _prefetch_for(self, executor: Executor, idle: list[Tier], now: float) -> None:
        """Begin the next load from each of the tiers from which nothing comes into the executor's pool."""
        pool = executor.pool
        ahead: set[str] = set()
        for expert in self._named(self._prefetch.rank(executor, self._world, now)):
            if expert in pool:
                ahead.add(expert)
            elif (source := self._world.source(pool.device, expert)) in idle:
                if pool.state(expert) is None:
                    self._residency.make_room(pool, expert, _why(executor), ahead, now)
                idle.remove(source)
                if not idle:
                    return

    def _named(self, experts: Iterable[str]) -> Iterator[str]:
        known = self._world.graph.experts
        for expert in experts:
            if expert not in known:
                raise policies.no_such("prefetch", self._prefetch, "expert of the rules", expert, known)
            yield expert


def _why(executor: Executor) -> Why:
    return Why.DEMAND if executor.batch is None else Why.PREFETCH
