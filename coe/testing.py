"""For tests of decisions, ours and those of a user's own policies: a controller driven in virtual time.

line = VirtualLine(rules_from("..."), {"a": Cost(...)}, pools_of(1, capacity_bytes=100))
line.arrive(0.0, "R1")
line.run()
assert line.log == [(0.0, "cpu0 load a"), (0.4, "cpu0 run a x1"), (0.9, "reply 0 OK")]
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from coe import rules
from coe.controller import Controller
from coe.core import Finding, Request, Result, Stage
from coe.costs import Cost, CostTable
from coe.events import (
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
)
from coe.plan import ExecutorSpec, Plan, PoolSpec
from coe.policies.strategies import strategy as named_strategy


def rules_from(text: str) -> rules.Rules:
    """Read a board file from a text."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "board.yaml"
        path.write_text(text, encoding="utf-8")
        return rules.load(path)


def pools_of(executors: int, capacity_bytes: int, workspace_bytes: int = 0) -> Plan:
    """Plan executors cpu0, cpu1, ... with a pool each."""
    ids = [f"cpu{index}" for index in range(executors)]
    return Plan(
        tuple(PoolSpec(id, "cpu", capacity_bytes, workspace_bytes) for id in ids),
        tuple(ExecutorSpec(id, "cpu", id) for id in ids),
    )


class VirtualLine:
    """Carries out a controller's commands in virtual time and keeps a log of (seconds, what happened).

    One lane serves loads by urgency, then first come, first served; an eviction takes `evict_s`. `findings` gives the
    label for (request id, expert), else the expert's first label is said with score 1. `bad_loads` maps experts to how
    many loads fail, `bad_stages` holds (request id, expert) that make any batch fail. `history` holds each event with
    its commands.
    """

    def __init__(
        self,
        board: rules.Rules,
        costs: Mapping[str, Cost],
        plan: Plan,
        *,
        strategy: str = "coserve",
        findings: Mapping[tuple[int, str], str | Finding] | None = None,
        bad_loads: Mapping[str, int] | None = None,
        bad_stages: frozenset[tuple[int, str]] = frozenset(),
        evict_s: float = 0.0,
    ) -> None:
        self.board = board
        table = CostTable({(pool.device, expert): cost for pool in plan.pools for expert, cost in costs.items()})
        self.costs = table
        self.controller = Controller(
            router=board.router, graph=board.graph, costs=table, plan=plan, strategy=named_strategy(strategy)
        )
        self.findings = dict(findings or {})
        self.bad_loads = dict(bad_loads or {})
        self.bad_stages = bad_stages
        self.evict_s = evict_s
        self.log: list[tuple[float, str]] = []
        self.results: dict[int, Result] = {}
        self.loads: list[Load] = []
        self.history: list[tuple[float, Event, list[Command]]] = []
        self._heap: list[tuple[float, int, Event]] = []
        self._ties = count()
        self._ids = count()
        self._lane: list[tuple[int, int, Load]] = []
        self._lane_busy = False
        self.now = 0.0

    def arrive(self, at_s: float, component: str) -> int:
        """Let an image of a component arrive; return its request's id."""
        request = Request(next(self._ids), component)
        self._at(at_s, Arrived(request))
        return request.id

    def reject(self, at_s: float, component: str, reason: str) -> int:
        """Let an image arrive that cannot be decoded; return its request's id."""
        request = Request(next(self._ids), component)
        self._at(at_s, Rejected(request, reason))
        return request.id

    def stop(self, at_s: float) -> None:
        """Let the user ask for an end."""
        self._at(at_s, Stopped())

    def run(self, *, start: bool = True) -> None:
        """Run until nothing is left to happen, checking all books after each event."""
        if start:
            self._carry_out(self.controller.start(0.0))
        while self._heap:
            self.now, _, event = heapq.heappop(self._heap)
            if isinstance(event, Loaded | LoadFailed):
                self._lane_busy = False
            commands = self.controller.handle(event, self.now)
            self.history.append((self.now, event, commands))
            self._carry_out(commands)
            self.controller.check()
        self.controller.check(idle=True)

    def _at(self, when: float, event: Event) -> None:
        heapq.heappush(self._heap, (when, next(self._ties), event))

    def _note(self, what: str) -> None:
        self.log.append((round(self.now, 6), what))

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Load():
                    self.loads.append(command)
                    heapq.heappush(self._lane, (command.why.urgency, next(self._ties), command))
                case Evict():
                    self._note(f"{command.pool} evict {command.expert}")
                    self._at(self.now + self.evict_s, Evicted(command.pool, command.expert))
                case Run():
                    self._run(command)
                case Reply():
                    result = command.result
                    assert result.request.id not in self.results, f"two replies to {result.request}"
                    self.results[result.request.id] = result
                    said = "error" if result.verdict is None else result.verdict.value
                    self._note(f"reply {result.request.id} {said}")
        self._serve_lane()

    def _serve_lane(self) -> None:
        if self._lane_busy or not self._lane:
            return
        _, _, load = heapq.heappop(self._lane)
        self._lane_busy = True
        self._note(f"{load.pool} load {load.expert}")
        device = self.controller.pools[load.pool].device
        done_s = self.now + self.costs(device, load.expert).load_s
        if self.bad_loads.get(load.expert, 0) > 0:
            self.bad_loads[load.expert] -= 1
            self._at(done_s, LoadFailed(load.pool, load.expert, "the disk said no"))
        else:
            self._at(done_s, Loaded(load.pool, load.expert))

    def _run(self, command: Run) -> None:
        batch = command.batch
        self._note(f"{command.executor} run {batch.expert} x{len(batch)}")
        device = self.controller.executors[command.executor].device
        done_s = self.now + self.costs(device, batch.expert).batch_s(len(batch))
        if any((stage.request_id, stage.expert) in self.bad_stages for stage in batch.stages):
            self._at(done_s, RunFailed(command.executor, "the model said no"))
        else:
            self._at(done_s, Finished(command.executor, tuple(self._find(stage) for stage in batch.stages)))

    def _find(self, stage: Stage) -> Finding:
        said = self.findings.get((stage.request_id, stage.expert), self.board.experts[stage.expert].labels[0])
        return said if isinstance(said, Finding) else Finding(stage.expert, "fp32", said, 1.0)
