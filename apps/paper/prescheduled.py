"""Repeats the commands of a recorded run, in the recorded order, with no scheduling at all (paper, figure 19).

    with Inspector(board, costs=line.costs, make_decider=repeating(line.trace)) as again: ...

Each pool's commands keep their recorded order; a command is issued once its needs are met. A batch needs its executor
idle, its expert loaded and its stages waiting. A load needs its bytes free, an eviction its expert idle; both also wait
for the images and ended batches that came before them in the record. Routing runs again, because models run again and
give new findings. Real pools keep the books, so no budget can be exceeded.

Longer than other files because it is one state machine, as the controller is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from coe.board.router import Router
from coe.core import Batch, Failure, FailureKind, Stage
from coe.errors import ConfigError
from coe.runtime.decider import MakeDecider
from coe.runtime.engine import Trace
from coe.scheduler.backlog import Backlog
from coe.scheduler.cases import Advance, Cases
from coe.scheduler.costs import CostTable, Tier
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Evicted,
    Finished,
    Load,
    Loaded,
    LoadFailed,
    Rejected,
    Reply,
    Run,
    RunFailed,
    Stopped,
    Why,
    single_events,
    single_steps,
)
from coe.scheduler.executor import Executor
from coe.scheduler.failures import STOPPED, not_loaded, not_run
from coe.scheduler.plan import Plan
from coe.scheduler.pool import ModelPool
from coe.scheduler.state import State

_NOT_RECORDED = "the recorded run did not ask expert '{}' about this image; the same images must come in the same order"
_STUCK = "the recorded run goes on in another way than this run, so that expert '{}' is not asked about this image"


@dataclass(frozen=True, slots=True)
class _Until:
    """The next command waits until all but `to_come` images have come and `finished` batches of the pool have ended."""

    to_come: int
    finished: int


@dataclass(slots=True)
class _Turn:
    """The commands that are still to be issued to a pool and its executors, and the failures of its failed loads."""

    pool: ModelPool
    finished: int = 0
    commands: deque[Load | Evict | Run | _Until] = field(default_factory=deque)
    broken: dict[str, Failure] = field(default_factory=dict)


def repeating(trace: Trace) -> MakeDecider:
    """Return a function for `make_decider`: its decider repeats `trace` and decides nothing."""

    def make(*, router: Router, costs: CostTable, plan: Plan, **_: object) -> Prescheduled:
        return Prescheduled(trace, router, plan, costs)

    return make


class Prescheduled:
    """Takes the place of a controller, for the recorded requests (by id), board, plan and costs.

    A difference from the record (a failed load or batch, other findings) ends in an error for the images concerned.
    The decider waits for every recorded request, or for `Stopped`; raises ConfigError for another plan.
    """

    def __init__(self, trace: Trace, router: Router, plan: Plan, costs: CostTable) -> None:
        self.router, self.costs = router, costs
        self.pools = {spec.id: ModelPool(spec) for spec in plan.pools}
        self.executors = {spec.id: Executor(spec, self.pools[spec.pool], Backlog()) for spec in plan.executors}
        self._turns = {id: _Turn(pool) for id, pool in self.pools.items()}
        self._to_run: Counter[Stage] = Counter()
        self._waiting: dict[Stage, None] = {}
        self._cases = Cases(router)
        self._ended: set[int] = set()
        self._moves, self._stopped = 0, False
        self._commands: list[Command] = []
        self._initial = [c for _, event, commands in trace if event is None for c in commands if isinstance(c, Load)]
        steps = [step for _, event, commands in trace for step in single_steps(event, commands)]
        self._to_come = {event.request.id for event, _ in steps if isinstance(event, Arrived | Rejected)}
        try:
            self._take_up(steps)
        except KeyError as error:
            raise ConfigError(
                f"the recorded run had {error}, but this line does not; give it the same executors"
            ) from None

    def __repr__(self) -> str:
        return f"<Prescheduled {len(self._cases)} requests under way, {len(self._to_come)} to come>"

    @property
    def under_way(self) -> int:
        """The number of requests that have arrived and have no reply yet."""
        return len(self._cases)

    def lacks_initial(self) -> bool:
        """Return whether the pools do not hold yet the experts that they began with."""
        return any(pool.is_moving_for(Why.INITIAL) for pool in self.pools.values())

    def start(self, now: float) -> list[Command]:
        """Load the experts that the pools began with; nothing else happens before the first image."""
        for load in self._initial:
            self._load(self._turns[load.pool], load)
        return self._flush()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, or events that came together; return the recorded commands that waited for them."""
        for part in single_events(event):
            self._take_in(part, now)
        while self._issue_any(now) or self._go_over(now):
            # Again: when one pool gives an image up, another pool no longer waits for it.
            pass
        return self._flush()

    def _take_in(self, event: Event, now: float) -> None:
        self._moves -= isinstance(event, Loaded | Evicted | LoadFailed | Finished | RunFailed)
        match event:
            case Arrived():
                self._to_come.discard(event.request.id)
                self._go_on(self._cases.open(event.request, now), now)
            case Rejected():
                self._to_come.discard(event.request.id)
                self._go_on(self._cases.refuse(event.request, event.failure, now), now)
            case Finished():
                self._finished(event, now)
            case RunFailed():
                batch = self._let_go(event.executor)
                self._fail(batch.stages, not_run(batch.expert, event), now)
            case Loaded():
                self.pools[event.pool].commit(event.expert)
            case Evicted():
                self.pools[event.pool].release(event.expert)
            case LoadFailed():
                if (body := self.pools[event.pool].abandon(event.expert)) is not None:
                    self._begin(Evict(event.pool, event.expert, body=body))
                self._turns[event.pool].broken[event.expert] = not_loaded(event.expert, event.reason)
            case Stopped():
                self._stop(now)

    def check(self, *, idle: bool = False) -> None:
        """Prove all books; with `idle`, also that nothing is left to do. Raises AssertionError."""
        for pool in self.pools.values():
            pool.check(idle=idle)
        assert not idle or not (self._moves or self._waiting or self._cases), f"{self!r} at idle"

    # The recorded commands

    def _take_up(self, steps: Sequence[tuple[Event | None, list[Command]]]) -> None:
        to_come, finished = len(self._to_come), Counter[str]()
        for event, commands in steps:
            if isinstance(event, Arrived | Rejected):
                to_come -= 1
            elif isinstance(event, Finished | RunFailed):
                finished[self.executors[event.executor].pool.id] += 1
            elif isinstance(event, LoadFailed):
                # In the record its bytes were free from then on; evict the expert if it loads this time.
                self._turns[event.pool].commands.append(Evict(event.pool, event.expert))
            for command in commands if event is not None else ():
                if isinstance(command, Run):
                    self._turns[self.executors[command.executor].pool.id].commands.append(command)
                    self._to_run.update(command.batch.stages)
                elif isinstance(command, Load | Evict):
                    until = _Until(to_come, finished[command.pool])
                    self._turns[command.pool].commands.extend((until, command))

    def _issue_any(self, now: float) -> bool:
        """Issue all commands that can be issued now; return whether there were any."""
        changed = False
        for turn in self._turns.values():
            while turn.commands and self._issue(turn, turn.commands[0], now):
                turn.commands.popleft()
                changed = True
        return changed

    def _go_over(self, now: float) -> bool:
        """If nothing runs and no image is to come, drop the command that blocks; return whether there was one."""
        if self._moves or self._to_come or not self._cases:
            return False
        turn = next((turn for turn in self._turns.values() if turn.commands), None)
        head = turn.commands.popleft() if turn else None
        if turn and isinstance(head, Run):
            waiting = tuple(stage for stage in head.batch.stages if stage in self._waiting)
            self._to_run.subtract(stage for stage in head.batch.stages if stage not in self._waiting)
            if waiting and len(waiting) < len(head.batch):
                turn.commands.appendleft(Run(head.executor, Batch(head.batch.expert, waiting)))
            else:
                turn.finished += 1
                self._to_run.subtract(waiting)
                self._fail(waiting, _astray(_STUCK, head.batch.expert), now)
        elif head is None:
            for stage in list(self._waiting):
                self._fail((stage,), _astray(_STUCK, stage.expert), now)
        return head is not None

    def _issue(self, turn: _Turn, command: Load | Evict | Run | _Until, now: float) -> bool:
        """Issue a command, or skip it if it has nothing to do; False if it must wait."""
        if isinstance(command, _Until):
            return len(self._to_come) <= command.to_come and turn.finished >= command.finished
        if isinstance(command, Run):
            return self._run(turn, command, now)
        if isinstance(command, Load):
            return self._load(turn, command)
        state = turn.pool.state(command.expert)
        if state is State.LOADING or (state is State.READY and not turn.pool.evictable(command.expert)):
            return False
        if state is State.READY:
            self._begin(replace(command, body=turn.pool.leave(command.expert)))
        return True

    def _load(self, turn: _Turn, command: Load) -> bool:
        pool, expert = turn.pool, command.expert
        if expert in pool:
            return True
        cost = self.costs.of(pool.device, expert, command.variant)
        if pool.state(expert) is not None or pool.missing_bytes(pool.needs(cost)):
            return False
        pool.plan(expert, cost.weights_bytes, command.why, variant=command.variant, body=cost.body)
        if not pool.reserve(expert):
            pool.cancel(expert)
            return False
        turn.broken.pop(expert, None)
        body = pool.missing_body(expert)
        self._begin(replace(command, source=command.source if body is None else Tier.DISK, body=body))
        return True

    def _run(self, turn: _Turn, command: Run, now: float) -> bool:
        executor, expert = self.executors[command.executor], command.batch.expert
        if executor.batch is not None:
            return False
        state = turn.pool.state(expert)
        if state is State.LOADING or not all(self._is_decided(stage) for stage in command.batch.stages):
            return False
        stages = tuple(stage for stage in command.batch.stages if stage in self._waiting)
        cost = self.costs(executor.device, expert)
        held_bytes = cost.batch_bytes(len(stages))
        if stages and state is State.READY and held_bytes > turn.pool.batch_room_bytes():
            return False
        self._to_run.subtract(command.batch.stages)
        if not stages or state is not State.READY:
            turn.finished += 1
            self._fail(stages, turn.broken.get(expert, _astray(_STUCK, expert)), now)
            return True
        for stage in stages:
            del self._waiting[stage]
        batch = Batch(expert, stages)
        turn.pool.pin(expert, held_bytes)
        executor.begin(batch, held_bytes, now + cost.batch_s(len(batch)))
        self._begin(Run(executor.id, batch))
        return True

    def _is_decided(self, stage: Stage) -> bool:
        """Tell whether a stage waits, or can no longer come because it has its finding, or its image its reply."""
        return stage in self._waiting or self._to_run[stage] < 1 or stage.request_id in self._ended

    def _begin(self, command: Load | Evict | Run) -> None:
        self._moves += 1
        self._commands.append(command)

    # Requests

    def _go_on(self, advance: Advance, now: float) -> None:
        for stage in advance.stages:
            self._waiting[stage] = None
            if self._stopped or self._to_run[stage] < 1:
                self._fail((stage,), STOPPED if self._stopped else _astray(_NOT_RECORDED, stage.expert), now)
        if advance.result is not None:
            self._ended.add(advance.result.request.id)
            self._commands.append(Reply(advance.result))

    def _finished(self, event: Finished, now: float) -> None:
        batch = self._let_go(event.executor)
        if len(event.findings) != len(batch):
            reason = f"it gave {len(event.findings)} finding(s) for {len(batch)} image(s)"
            self._fail(batch.stages, not_run(batch.expert, RunFailed(event.executor, reason)), now)
            return
        for stage, finding in zip(batch.stages, event.findings, strict=True):
            self._to_run[stage] = 0
            self._go_on(self._cases.found(stage, finding, now), now)

    def _let_go(self, executor_id: str) -> Batch:
        executor = self.executors[executor_id]
        flight = executor.end()
        self._turns[executor.pool.id].finished += 1
        executor.pool.unpin(flight.batch.expert, flight.held_bytes)
        return flight.batch

    def _fail(self, stages: Iterable[Stage], failure: Failure, now: float) -> None:
        """Let stages wait for the next batch that was recorded with them; if there is none, they fail."""
        for stage in stages:
            if self._to_run[stage] > 0 and not self._stopped:
                self._waiting[stage] = None
            else:
                self._waiting.pop(stage, None)
                self._go_on(self._cases.failed(stage, failure, now), now)

    def _stop(self, now: float) -> None:
        self._stopped = True
        for turn in self._turns.values():
            turn.commands.clear()
        self._fail(list(self._waiting), STOPPED, now)

    def _flush(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands


def _astray(sentence: str, expert: str) -> Failure:
    return Failure(FailureKind.LINE, sentence.format(expert))
