"""The decision core: `handle(event, now) -> commands`. No I/O, no threads, no clock, no torch.

The driver (the engine on real hardware, or the simulator in virtual time) carries out the commands in order and reports
what happened as further events. The same events at the same times give the same commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from coe import config
from coe.board.graph import ExpertGraph
from coe.board.parts_list import PlacedPart
from coe.board.router import Router
from coe.config import counted
from coe.core import Batch, Failure, FailureKind, Finding, Stage
from coe.helpers.arithmetic import added
from coe.scheduler import policies
from coe.scheduler.backlog import Backlog
from coe.scheduler.cases import Advance, Cases
from coe.scheduler.costs import CostTable
from coe.scheduler.deadlines import Deadlines, LeastTime
from coe.scheduler.demand import Demand
from coe.scheduler.dispatcher import Dispatcher
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    EventBatch,
    Evicted,
    Fetched,
    Filled,
    FillFailed,
    Finished,
    GiveUp,
    Loaded,
    LoadFailed,
    Lost,
    PaceChanged,
    Rejected,
    Reply,
    RulesChanged,
    RunFailed,
    Stopped,
)
from coe.scheduler.executor import Executor
from coe.scheduler.failures import STOPPED, BrokenExperts, not_run
from coe.scheduler.foresight import LineForesight
from coe.scheduler.history import History
from coe.scheduler.plan import Plan
from coe.scheduler.policies.base import Arrange, Assign, World
from coe.scheduler.pool import State
from coe.scheduler.residency import Residency
from coe.scheduler.strategies import Strategy, check_hurry, check_parts


class Controller:
    """Assigns, arranges, splits, loads and evicts by the policies of one strategy.

    If the strategy looks at ages, an image goes first once half of `max_wait_s` (`config.MAX_WAIT_S` if None) or half
    of its time until it is due is over. `parts` holds the parts list of each board by its key, in the order of
    the camera; without it the order is learned. The attribute `plan` has the pools that the strategy needs (see
    `Strategy.pooled`). Raises ConfigError if `max_wait_s` is not a time, or the strategy would ignore it or `parts`.
    """

    def __init__(
        self,
        *,
        router: Router,
        graph: ExpertGraph,
        costs: CostTable,
        plan: Plan,
        strategy: Strategy,
        max_wait_s: float | None = None,
        parts: Mapping[str, Sequence[PlacedPart]] | None = None,
    ) -> None:
        check_hurry(strategy, max_wait_s=max_wait_s)
        check_parts(strategy, parts or {})
        self.router, self.graph, self.costs, self.strategy = router, graph, costs, strategy
        self.plan = strategy.pooled(_quickest_first(plan, graph, costs))
        self._commands: list[Command] = []
        self._residency = Residency(self.plan, strategy.eviction, self._commands.append)
        self.pools, self.cache = self._residency.pools, self._residency.cache
        self.demand = Demand(_usage(graph), router.followers())
        self._shared = Backlog(self.demand.changed) if strategy.shared else None
        self.executors = {
            spec.id: Executor(spec, self.pools[spec.pool], Backlog() if self._shared is None else self._shared)
            for spec in self.plan.executors
        }
        self.history = History()
        self._foresight = LineForesight(router, self.demand.changed, parts)
        if strategy.foresees:
            self.history.watch(self._foresight)
        self.world = self._seen()
        self._backlogs = self.world.backlogs()
        self._residency.watch(self.world)
        self._assign: Assign = policies.make("assign", strategy.assign)
        self._arrange: Arrange = policies.make("arrange", strategy.arrange)
        self._broken = BrokenExperts()
        self._dispatcher = Dispatcher(strategy, self._residency, self._broken, self._commands.append)
        self._dispatcher.follow(self.world)
        self._cases = Cases(router)
        self._deadlines: Deadlines | None = None
        if strategy.hurries:
            self._least_time = LeastTime(self.world, self._cases)
            self._deadlines = Deadlines(max_wait_s or config.MAX_WAIT_S, self._least_time.too_late_s)
        self._gone: dict[str, Executor] = {}
        self._lost: dict[str, Failure] = {}
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Controller {self.strategy.name}, {len(self._cases)} requests under way, {len(self.pools)} pools>"

    def _seen(self) -> World:
        """Return the world that policies look at."""
        return World(
            self.graph,
            self.costs,
            self.executors,
            self.demand,
            self._residency.evictions,
            self.cache,
            self.history,
            self._foresight,
            self.router,
        )

    def start(self, now: float) -> list[Command]:
        """Begin to load the initial experts; that goes on while nothing else is loaded, until nothing fits."""
        self._residency.load_initial(now)
        return self._flush()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, or events that came together; return the commands, in order.

        `now` is in seconds and never goes back. If a policy fails, `GiveUp` follows the replies that are decided.
        """
        parts = iter(event.events if isinstance(event, EventBatch) else (event,))
        try:
            for part in parts:
                self._take_in(part, now)
            self._hurry(now)
            if not self._stopped:
                self._residency.issue(now)
                self._dispatcher.dispatch(now)
        except BaseException as error:
            self._settle(parts, now)
            return [*(command for command in self._flush() if isinstance(command, Reply)), GiveUp(error)]
        return self._flush()

    def _settle(self, left: Iterable[Event], now: float) -> None:
        """Reply to what is decided, also by the findings of events that were not taken in. No policy is asked."""
        for event in left:
            if isinstance(event, Finished | RunFailed):
                batch = self._executor(event.executor).end().batch
                if isinstance(event, Finished) and len(event.findings) == len(batch):
                    self._judge(batch, event.findings, now)
        self._commands += map(Reply, self._cases.close_decided(now))

    def _take_in(self, event: Event, now: float) -> None:  # noqa: PLR0912 - a branch for each event
        match event:
            case Arrived():
                self._residency.learned()
                self.demand.arrived()
                self.history.arrived(event.request, now)
                advance = self._cases.open(event.request, now)
                if self._deadlines is not None and advance.result is None:
                    self._deadlines.arrived(event.request, now)
                self._go_on(advance, now)
            case Rejected():
                self._go_on(self._cases.refuse(event.request, event.failure, now), now)
            case Finished():
                self._finished(event, now)
            case RunFailed():
                self._run_failed(event, now)
            case Fetched():
                self._residency.fetched(event.pool, event.expert, now)
            case Loaded():
                self._residency.loaded(event.pool, event.expert)
                self._broken.loaded(event.expert)
            case Evicted():
                self._residency.evicted(event.pool, event.expert)
            case LoadFailed():
                self._load_failed(event, now)
            case Filled() | FillFailed():
                self._residency.fill_ended(event.expert, is_there=isinstance(event, Filled))
            case Lost():
                self._lose(event, now)
            case RulesChanged():
                self._change(event)
            case Stopped():
                self._stop(now)

    @property
    def under_way(self) -> int:
        """The number of requests that have arrived and have no reply yet."""
        return len(self._cases)

    def lacks_initial(self) -> bool:
        """Return whether the pools do not hold their initial experts yet."""
        return self._residency.lacks_initial()

    def check(self, *, idle: bool = False) -> None:
        """Prove all books; with `idle`, also that nothing is left to do. Raises AssertionError."""
        self._residency.check(idle=idle)
        self.demand.check(idle=idle)
        if self._deadlines is not None:
            self._deadlines.check(idle=idle)
        for executor in self.executors.values():
            executor.backlog.check()
            if idle:
                assert executor.batch is None, f"{executor!r} at idle"
                assert not len(executor.backlog), f"{executor!r} at idle"
        assert not idle or not self._cases, f"{len(self._cases)} requests have no reply at idle"

    # Rules

    def _change(self, event: RulesChanged) -> None:
        """Go on with other rules. Policies are made again, because they may keep rankings of all experts."""
        under_way = [expert for expert in self.graph.experts if self.demand.open(expert)]
        if gone := [expert for expert in under_way if expert not in event.graph.experts]:
            raise ValueError(f"the new rules lack experts that requests under way need: {', '.join(gone)}")
        self.router, self.graph, self.costs = event.router, event.graph, self.costs.restated(event.costs)
        self.plan = self.strategy.pooled(event.plan)
        self._cases.follow(event.router)
        self.demand.begin(_usage(event.graph), event.followers)
        self.history.tell_only([self._foresight] if self.strategy.foresees else [])
        self._foresight.follow(event.router, event.parts)
        self.world = self._seen()
        if self._deadlines is not None:
            self._least_time.follow(self.world)
        if self.executors:
            self._residency.change(self.world, self.plan)
            self._dispatcher.follow(self.world)
        if self._stopped:
            self._residency.stop()

    # Requests

    def _go_on(self, advance: Advance, now: float, *, replied: bool = False) -> None:
        """Queue the stages of an advance; if it ends its request, reply unless that is done, and note it."""
        if advance.result is not None and not replied:
            self._commands.append(Reply(advance.result))
        for stage in advance.stages:
            self.demand.opened(stage.expert)
        for stage in advance.stages:
            self._queue(stage, now)
        if advance.result is not None:
            self.history.answered(advance.result.request.id)
            if self._deadlines is not None:
                self._deadlines.replied(advance.result.request, now)

    def _queue(self, stage: Stage, now: float) -> None:
        if self._stopped or not self.executors:
            self._fail(stage, STOPPED if self._stopped else next(reversed(self._lost.values())), now)
            return
        world, failure = self.world, self._broken.failure(stage.expert, now) if self._broken.attempts else None
        if failure is not None:
            # An expert that cannot be loaded can still run where it is resident.
            able = {e.id: e for e in self.executors.values() if e.pool.state(stage.expert) is State.READY}
            if not able:
                self._fail(stage, failure, now)
                return
            world = replace(world, executors=able)
        if (executor := self.executors.get(str(chosen := self._assign.choose(stage.expert, world, now)))) is None:
            raise policies.no_such("assign", self._assign, "executor", chosen, self.executors)
        cost = self.costs(executor.device, stage.expert)
        alone = not executor.backlog.waiting(stage.expert)
        charge_s = cost.per_image_s + (cost.base_s if alone else 0.0)
        if alone and stage.expert not in executor.pool:
            charge_s += self.world.switch_s(executor.pool, stage.expert)
        join = self._arrange.joins(stage.expert, executor.backlog, now)
        executor.backlog.add(stage, charge_s, join=join, now=now, due_s=self._due_s(stage.request_id))

    def _due_s(self, request_id: int) -> float:
        return self._deadlines.due_s(request_id) if self._deadlines is not None else math.inf

    def _hurry(self, now: float) -> None:
        """Move waiting stages whose due times have changed, and name the boards that will miss."""
        if self._deadlines is None or not self._deadlines.has_changes(now) or not self.executors:
            return
        for change in self._deadlines.changes(now):
            for expert in self._cases.awaits(change.request_id):
                for backlog in self._backlogs:
                    backlog.hurry(change.request_id, expert, change.due_s, change.was_s)
        self._commands += self._deadlines.missed
        self._deadlines.missed.clear()

    def _finished(self, event: Finished, now: float) -> None:
        executor = self._executor(event.executor)
        images = len(executor.batch.stages) if executor.batch is not None else len(event.findings)
        if len(event.findings) != images:
            reason = f"it gave {counted(len(event.findings), 'finding')} for {counted(images, 'image')}"
            self._run_failed(RunFailed(event.executor, reason), now)
            return
        flight = executor.end()
        batch = flight.batch
        # Replies before books: a policy that fails when it hears of the batch must not cost an image its verdict.
        advances = self._judge(batch, event.findings, now)
        self._residency.ended(executor.pool, flight)
        self._residency.learned()
        self._follow(executor.device, batch, event.took_s)
        for stage, finding, advance in zip(batch.stages, event.findings, advances, strict=True):
            self.history.found(stage.request_id, finding)
            self._go_on(advance, now, replied=True)
            if self._cases.decided(stage.request_id):
                self._withdraw(stage.request_id, now)
        self.demand.closed(batch.expert, len(batch))

    def _judge(self, batch: Batch, findings: Sequence[Finding], now: float) -> list[Advance]:
        """Take in the findings of a batch, and reply to the images that they decide. No policy is asked."""
        advances: list[Advance] = []
        for stage, finding in zip(batch.stages, findings, strict=True):
            advances.append(advance := self._cases.found(stage, finding, now))
            if advance.result is not None:
                self._commands.append(Reply(advance.result))
        return advances

    def _withdraw(self, request_id: int, now: float) -> None:
        """Withdraw the stages of a decided request that wait; a stage that runs is awaited."""
        due_s = self._due_s(request_id)
        for expert in tuple(self._cases.awaits(request_id)):
            if any(backlog.withdraw(request_id, expert, due_s) for backlog in self._backlogs):
                self._give_up(Stage(request_id, expert), now)

    def _give_up(self, stage: Stage, now: float) -> None:
        self.demand.closed(stage.expert)
        self._go_on(self._cases.withdrawn(stage, now), now)

    def _follow(self, device: str, batch: Batch, took_s: float) -> None:
        """Let the costs follow a batch; policies rank all experts again if that changed them."""
        pace = self.costs.ran(device, batch.expert, len(batch.stages), took_s)
        if pace is not None:
            self._commands.append(PaceChanged(device, pace))
            for expert in self.graph.experts:
                self.demand.changed(expert)

    # Failures

    def _run_failed(self, event: RunFailed, now: float) -> None:
        """Run the stages of a failed batch one by one, so that only the stages at fault fail."""
        executor = self._executor(event.executor)
        flight = executor.end()
        batch = flight.batch
        self._residency.ended(executor.pool, flight)
        stages = tuple(stage for stage in batch.stages if not self._cases.decided(stage.request_id))
        for stage in batch.stages:
            if stage not in stages:
                self._give_up(stage, now)
        if executor.device in self._lost and not self._stopped:
            for stage in stages:
                self._queue(stage, now)
        elif len(batch) == 1 or self._stopped:
            for stage in stages:
                self._fail(stage, not_run(batch.expert, event), now)
        else:
            cost = self.costs(executor.device, batch.expert)
            executor.backlog.put_back(stages, cost.batch_s(1), now)
            for stage in stages:
                executor.backlog.hurry(stage.request_id, stage.expert, self._due_s(stage.request_id), math.inf)

    def _load_failed(self, event: LoadFailed, now: float) -> None:
        self._residency.failed(event.pool, event.expert)
        if self.pools[event.pool].device in self._lost:
            return
        if self._broken.failed(event.expert, event.reason, now):
            for executor in self.executors.values():
                if executor.pool.state(event.expert) is not State.READY:
                    for stage in executor.backlog.drop(event.expert):
                        self._queue(stage, now)

    def _lose(self, event: Lost, now: float) -> None:
        """Go on without a device: stages of its executors go to other executors, or fail if none is left."""
        if event.device in self._lost:
            return
        self._lost[event.device] = Failure(FailureKind.DEVICE, f"{event.device} was lost: {event.reason}")
        for executor in [executor for executor in self.executors.values() if executor.device == event.device]:
            self._gone[executor.id] = self.executors.pop(executor.id)
            self._residency.lose(executor.pool.id)
        if self.executors:
            self._dispatcher.follow(self.world)
        for executor in self._gone.values():
            if self._shared is None or not self.executors:
                for expert in {group.expert: None for group in executor.backlog.groups()}:
                    for stage in executor.backlog.drop(expert):
                        self._queue(stage, now)

    def _executor(self, id: str) -> Executor:
        return self.executors.get(id) or self._gone[id]

    def _fail(self, stage: Stage, failure: Failure, now: float) -> None:
        self.demand.closed(stage.expert)
        self._go_on(self._cases.failed(stage, failure, now), now)

    def _stop(self, now: float) -> None:
        self._stopped = True
        self._residency.stop()
        for executor in self.executors.values():
            for expert in {group.expert: None for group in executor.backlog.groups()}:
                for stage in executor.backlog.drop(expert):
                    self._fail(stage, STOPPED, now)

    def _flush(self) -> list[Command]:
        commands = self._commands.copy()
        self._commands.clear()
        return commands


def _quickest_first(plan: Plan, graph: ExpertGraph, costs: CostTable) -> Plan:
    """Return a plan whose quickest device stands first: the order in which executors were given decides nothing.

    Executors of a device keep their order: their names have it.
    """
    devices = {pool.device for pool in plan.pools}
    images_s = {device: added(costs(device, expert).batch_s(1) for expert in graph.experts) for device in devices}
    return replace(
        plan,
        pools=tuple(sorted(plan.pools, key=lambda pool: (images_s[pool.device], pool.device))),
        executors=tuple(sorted(plan.executors, key=lambda one: (images_s[one.device], one.device))),
    )


def _usage(graph: ExpertGraph) -> dict[str, float]:
    return {expert: graph.probability(expert) for expert in graph.experts}
