"""For tests of decisions, those of a user's policies too: a controller driven in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from coe.board import rules
from coe.board.graph import follows
from coe.board.parts_list import PlacedPart
from coe.core import FULL, Failure, FailureKind, Finding, Request, Result
from coe.inspector.experiment import Experiment
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Fill,
    GiveUp,
    Late,
    Load,
    Lost,
    Rejected,
    Reply,
    RulesChanged,
    Run,
    Stopped,
    Why,
)
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import Strategy
from coe.scheduler.strategies import strategy as named_strategy
from coe.sim.simulator import Faults, Simulator, Speeds

__all__ = ["Experiment", "Troubles", "VirtualLine", "pools_of", "rules_from"]


def rules_from(text: str) -> rules.Rules:
    """Read a board file from a text."""
    return rules.of_bytes(Path("board.yaml"), text.encode())


def pools_of(executors: int, capacity_bytes: int, workspace_bytes: int = 0) -> Plan:
    """Return a plan with executors cpu0, cpu1, ..., each with its own pool."""
    ids = [f"cpu{index}" for index in range(executors)]
    return Plan(
        tuple(PoolSpec(id, "cpu", capacity_bytes, workspace_bytes) for id in ids),
        tuple(ExecutorSpec(id, "cpu", id) for id in ids),
    )


@dataclass(frozen=True, slots=True)
class Troubles:
    """The faults of a test: how many loads of an expert fail, and the (request id, expert) that make any batch fail."""

    bad_loads: Mapping[str, int] = field(default_factory=dict)
    bad_stages: frozenset[tuple[int, str]] = frozenset()


class VirtualLine:
    """A simulated line that keeps a log of (seconds, what happened) and checks all books after each event.

    A table of `costs` is taken as it is, and may have other costs on each device. An eviction takes `evict_s`.
    `findings` gives the label for (request id, expert); without an entry the expert says its first label with score 1.
    `bad_loads` begins as in `troubles`, and holds how many loads of each expert will still fail; a test may change it.
    `history` holds each event with its commands.

    `parts` are those of the board, or by board key. For a line whose boards change (`change`), `costs` hold the experts
    of all boards.

    Example:
        >>> board = rules_from(
        ...     "{board: lamp, experts: {eye: {kind: resnet18, labels: [ok, bad], input: 48, reject: [bad]}}, "
        ...     "components: {R: {inspect: eye}}}"
        ... )
        >>> line = VirtualLine(board, {"eye": Cost(0.1, 0.2, 0.4, 100, 10)}, pools_of(1, capacity_bytes=200))
        >>> line.arrive(1.0, "R")
        0
        >>> line.run()
        >>> line.log
        [(0.0, 'cpu0 load eye'), (1.0, 'cpu0 run eye x1'), (1.3, 'reply 0 OK')]
    """

    def __init__(  # noqa: PLR0913
        self,
        board: rules.Rules,
        costs: Mapping[str, Cost] | CostTable,
        plan: Plan,
        *,
        strategy: str | Strategy = "coserve",
        findings: Mapping[tuple[int, str], str | Finding] | None = None,
        troubles: Troubles = Troubles(),
        evict_s: float = 0.0,
        max_wait_s: float | None = None,
        parts: Sequence[PlacedPart] | Mapping[str, Sequence[PlacedPart]] = (),
    ) -> None:
        self.board = board
        self.costs = _on_all_devices(costs, plan) if isinstance(costs, Mapping) else costs
        self.controller = Controller(
            router=board.router,
            graph=board.graph,
            costs=self.costs,
            plan=plan,
            strategy=named_strategy(strategy),
            max_wait_s=max_wait_s,
            parts=parts if isinstance(parts, Mapping) else {"": parts},
        )
        self._plan = plan
        self._findings = _StatedFindings(board, findings or {})
        self.log: list[tuple[float, str]] = []
        self.results: dict[int, Result] = {}
        self.loads: list[Load] = []
        self.history: list[tuple[float, Event, list[Command]]] = []
        self.bad_loads = dict(troubles.bad_loads)
        self._ids = count()
        self._faults = _StatedFaults(self.bad_loads, troubles.bad_stages)
        self._simulator = Simulator(
            self.controller,
            self._findings,
            watchers=[self],
            span=lambda device, what, begin_s, end_s: self._note(begin_s, what),
            faults=self._faults,
            speeds=Speeds(evict_s=evict_s),
        )

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self._simulator.now

    @property
    def switches(self) -> int:
        """How many loads there were because a stage needs an expert that is not resident; initial loads are none."""
        return sum(load.why is not Why.INITIAL for load in self.loads)

    def arrive(
        self,
        at_s: float,
        component: str,
        *,
        serial: str = "",
        refdes: str = "",
        due_s: float = math.inf,
        board: str = "",
    ) -> int:
        """Let an image of a component arrive; return its request's id. On a line of a union, `board` is a key of it."""
        request = Request(
            next(self._ids), component, serial=serial, refdes=refdes, due_s=due_s, board=board, board_key=board
        )
        self._simulator.at(at_s, Arrived(request))
        return request.id

    def reject(self, at_s: float, component: str, reason: str) -> int:
        """Let an image arrive that cannot be decoded; return its request's id."""
        request = Request(next(self._ids), component)
        self._simulator.at(at_s, Rejected(request, Failure(FailureKind.IMAGE, reason)))
        return request.id

    def lose(self, at_s: float, device: str) -> None:
        """Lose a device; a load or batch under way on it fails at the time when it would have ended."""
        self._simulator.at(at_s, Lost(device, "it fell off the bus"))
        plan = self.controller.plan
        gone = {spec.id for spec in plan.executors if spec.device == device}
        gone |= {pool.id for pool in plan.pools if pool.device == device}
        self._faults.lost.append((lambda: self.now >= at_s, gone))

    def change(
        self,
        at_s: float,
        board: rules.Rules,
        *,
        parts: Mapping[str, Sequence[PlacedPart]] | None = None,
        plan: Plan | None = None,
    ) -> None:
        """Let the line go on with other rules: a union of those that images under way need, and of others.

        `parts` are by board key, and name each board (with an empty list if there is none); `plan` may have other
        workspaces.
        """
        self._findings.experts |= board.experts
        plan = self._plan if plan is None else plan
        followers = follows(board.components.values(), board.router.escalations)
        parts = {"": ()} if parts is None else parts
        event = RulesChanged(board.router, board.graph, self.costs, plan, parts, followers)
        self._simulator.at(at_s, event)

    def stop(self, at_s: float) -> None:
        """Stop the line, as a user does."""
        self._simulator.at(at_s, Stopped())

    def run(self, *, start: bool = True) -> None:
        """Run until no event is left."""
        if start:
            self._simulator.start()
        self._simulator.run()
        self.controller.check(idle=True)

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Log an event and its commands; the simulator calls this."""
        if event is not None:
            self.history.append((now, event, commands))
            if not (commands and isinstance(commands[-1], GiveUp)):
                self.controller.check()
        for command in commands:
            match command:
                case Load():
                    self.loads.append(command)
                case Evict():
                    self._note(now, f"{command.pool} evict {command.expert}")
                case Run():
                    self._note(now, f"{command.executor} run {command.batch.expert} x{len(command.batch)}")
                case Late():
                    self._note(now, f"late {command.board}")
                case Reply():
                    result = command.result
                    assert result.request.id not in self.results, f"two replies to {result.request}"
                    self.results[result.request.id] = result
                    word = "error" if result.verdict is None else result.verdict.value
                    self._note(now, f"reply {result.request.id} {word}")

    def _note(self, now: float, what: str) -> None:
        self.log.append((round(now, 6), what))


def _on_all_devices(costs: Mapping[str, Cost], plan: Plan) -> CostTable:
    """Return a table in which experts cost the same on all devices of a plan."""
    return CostTable({(pool.device, expert): cost for pool in plan.pools for expert, cost in costs.items()})


class _StatedFindings:
    """The findings that a test states."""

    def __init__(self, board: rules.Rules, findings: Mapping[tuple[int, str], str | Finding]) -> None:
        self.experts, self._findings = dict(board.experts), findings

    def find(self, request: Request, expert: str) -> Finding:
        finding = self._findings.get((request.id, expert), self.experts[expert].labels[0])
        return finding if isinstance(finding, Finding) else Finding(expert, FULL, finding, 1.0)


class _StatedFaults(Faults):
    """The faults that a test states."""

    def __init__(self, loads: dict[str, int], stages: frozenset[tuple[int, str]]) -> None:
        self._loads, self._stages = loads, stages
        self.lost: list[tuple[Callable[[], bool], set[str]]] = []

    def of_load(self, load: Load) -> str | None:
        return "it fell off the bus" if self._is_lost(load.pool) else self._of_read(load.expert)

    def of_fill(self, fill: Fill) -> str | None:
        return self._of_read(fill.expert)

    def of_run(self, run: Run) -> str | None:
        if self._is_lost(run.executor):
            return "it fell off the bus"
        bad = any((stage.request_id, stage.expert) in self._stages for stage in run.batch.stages)
        return "the model said no" if bad else None

    def _of_read(self, expert: str) -> str | None:
        if self._loads.get(expert, 0) < 1:
            return None
        self._loads[expert] -= 1
        return "the disk said no"

    def _is_lost(self, id: str) -> bool:
        return any(happened() and id in gone for happened, gone in self.lost)
