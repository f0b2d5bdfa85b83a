"""Simulated clusters: a workload on several equal boxes in virtual time, by one strategy."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from rich.table import Table

from coe.board import rules
from coe.board.rules import Rules
from coe.board.union import Member, union
from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds, ExpertPlacement, Traffic
from coe.cluster.decisions.head import ClusterHead
from coe.cluster.decisions.place_experts import budget_of, needs_of, place_experts
from coe.cluster.decisions.routing import BoxView, Prices, ReplicaRouting, stage_prices
from coe.cluster.decisions.stage_rules import StageRules, stage_rules
from coe.core import Result, Verdict, rule_of
from coe.errors import ConfigError
from coe.lab.bound import Bound, bound
from coe.lab.cluster_simulator import BoxWatcher, ClusterSimulator, MakeBox, SimulatedNetwork
from coe.lab.machine import SimulatedMachine
from coe.lab.rows import figures_table
from coe.lab.simulated import Contender
from coe.lab.workloads.workload import Workload
from coe.results.metrics import Metrics, Recorder, Watcher
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan
from coe.sim.agenda import Agenda
from coe.sim.oracle import Oracle, SampledOracle
from coe.sim.simulator import Simulator, Speeds


@dataclass(frozen=True, slots=True)
class Fleet:
    """Boards that pass equally often, joined; `boards` holds the rules (`Request.rule`) of each."""

    rules: Rules
    boards: Mapping[str, tuple[str, ...]]


def fleet(names: Sequence[str]) -> Fleet:
    """Join boards, by name or path; no two of them share an expert. Raises ConfigError for a board named twice."""
    members = [Member(f"board{number}", loaded, {}) for number, loaded in enumerate(rules.load(name) for name in names)]
    if len(set(names)) < len(names):
        raise ConfigError(f"--boards names a board twice: {', '.join(names)}; name each once")
    if len(members) == 1:
        return Fleet(members[0].rules, {members[0].rules.board: tuple(members[0].rules.components)})
    members = [
        replace(
            member,
            experts={name: replace(expert, id=f"{member.key}/{name}") for name, expert in member.rules.experts.items()},
        )
        for member in members
    ]
    return Fleet(
        union(members),
        {member.key: tuple(rule_of(member.key, name) for name in member.rules.components) for member in members},
    )


class Mishap(StrEnum):
    """What happens to the boxes when half of the time is over that the run takes without it."""

    NONE = "none"
    LOST = "lost"
    JOINS = "joins"


@dataclass(frozen=True)
class Scene:
    """What all runs of a workload on boxes of one kind have in common."""

    machine: SimulatedMachine
    workload: Workload
    fleet: Fleet
    contender: Contender
    network: SimulatedNetwork = field(default_factory=SimulatedNetwork)
    seed: int = 0
    max_wait_s: float | None = None

    @cached_property
    def costs(self) -> CostTable:
        """The costs of all experts."""
        return self.machine.costs(self.fleet.rules)

    @cached_property
    def plan(self) -> Plan:
        """The pools and executors of each box."""
        board = self.fleet.rules
        configuration = self.machine.configuration(self.contender.configuration, board.board)
        return self.machine.plan(board, self.costs, self.contender.strategy, configuration)

    @cached_property
    def speeds(self) -> dict[str, float]:
        """How fast the executors of each device are together."""
        numbers = {device: sum(e.device == device for e in self.plan.executors) for device in self.machine.scaling}
        return {
            device: self.machine.scaling[device][min(number, len(self.machine.scaling[device])) - 1]
            for device, number in numbers.items()
            if number
        }

    @cached_property
    def needs(self) -> list[ExpertNeeds]:
        """What each expert needs of a box."""
        return needs_of(self.fleet.rules, self.fleet.boards, self.costs, self.plan, self.speeds)

    @cached_property
    def prices(self) -> Prices:
        """What a stage of each expert takes of a box."""
        return stage_prices(self.costs, self.plan, self.fleet.rules.experts, self.speeds)

    @cached_property
    def followers(self) -> Mapping[str, Mapping[str, float]]:
        """How many stages of others a stage leads to."""
        return self.fleet.rules.router.followers()

    @cached_property
    def oracle(self) -> Oracle:
        """The findings."""
        return SampledOracle(self.fleet.rules, self.seed)

    @property
    def traffic(self) -> Traffic:
        """What expert placement counts with: all images of the workload may wait together."""
        return Traffic(self.network.move_s, len(self.workload.arrivals))

    def budget(self, box: str) -> BoxBudget:
        """Return the bytes of a box for experts."""
        return budget_of(box, self.plan)

    def homes(self, boxes: Sequence[str], before: ExpertPlacement | None = None) -> ExpertPlacement:
        """Return the homes of all experts."""
        return place_experts(self.needs, [self.budget(box) for box in boxes], self.traffic, before)

    def least(self, boxes: int) -> Bound:
        """Return what no order on all boxes as one could beat; at first its memory holds the likeliest experts."""
        room, resident = boxes * self.budget("").bytes, []
        sizes = {need.expert: need.bytes for need in self.needs}
        for expert in self.fleet.rules.graph.by_probability:
            if sizes[expert] <= room:
                resident.append(expert)
                room -= sizes[expert]
        scaling = self.machine.scaling
        return bound(self.workload, self.oracle, self.costs, self.plan, scaling, resident, (), boxes)


@dataclass(slots=True)
class ClusterRun:
    """What came of a run: when each image was answered, and how long that took."""

    answered_s: array[float] = field(default_factory=lambda: array("d"))
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    verdicts: dict[int, Verdict | None] = field(default_factory=dict)
    """By request; None without a verdict."""
    boxes: dict[str, Metrics] = field(default_factory=dict)
    images_moved: int = 0
    stages: int = 0
    experts_moved: int = 0
    mishap_s: float = 0.0
    head_s: float = 0.0

    def answer(self, result: Result, now: float) -> None:
        """Take in a result."""
        assert result.request.id not in self.verdicts, f"image {result.request.id} is answered twice"
        self.answered_s.append(now)
        self.latencies_s.append(result.latency_s)
        self.verdicts[result.request.id] = result.verdict

    @property
    def failed(self) -> int:
        """How many images have no verdict."""
        return sum(verdict is None for verdict in self.verdicts.values())

    @property
    def makespan_s(self) -> float:
        """When the last image was answered."""
        return self.answered_s[-1]

    @property
    def images_per_s(self) -> float:
        """Answers a second, from time 0 on."""
        return len(self.answered_s) / self.makespan_s

    @property
    def switches(self) -> int:
        """The switches of all boxes."""
        return sum(metrics.switches for metrics in self.boxes.values())

    def quantile_s(self, share: float) -> float:
        """Return the latency that `share` of the answers do not exceed."""
        return float(np.quantile(np.asarray(self.latencies_s), share))

    def rate_after(self, answered: int) -> float:
        """Return answers a second, from that with this number on."""
        rest = len(self.answered_s) - answered
        return (rest - 1) / (self.makespan_s - self.answered_s[answered]) if rest > 1 else 0.0

    def answered_by(self, when_s: float) -> int:
        """Return how many images were answered by a time."""
        return int(np.searchsorted(np.asarray(self.answered_s), when_s, side="right"))


def cluster_run(scene: Scene, boxes: int, mishap: Mishap = Mishap.NONE, mishap_s: float = 0.0) -> ClusterRun:
    """Run a workload on a number of boxes to the last answer; with a mishap at `mishap_s` seconds."""
    return _Running(scene, [f"box{number}" for number in range(boxes)]).run(mishap, mishap_s)


class _Running:
    """One run: the cluster, and the recorders of its boxes."""

    def __init__(self, scene: Scene, names: list[str]) -> None:
        self._scene, self._names = scene, names
        self._homes = scene.homes(names)
        views = [self._view(name) for name in names]
        routing = ReplicaRouting(scene.network.move_s)
        head = ClusterHead(scene.fleet.rules.router, routing, self._homes, views)
        self._done = ClusterRun()
        self._cluster = ClusterSimulator(
            head, scene.network, scene.oracle, self._rules, self._homes, self._done.answer, time.perf_counter
        )
        self._recorders: dict[str, Recorder] = {}

    def run(self, mishap: Mishap, mishap_s: float) -> ClusterRun:
        for name in self._names:
            self._cluster.open(name, self._maker(name))
        if mishap is Mishap.LOST:
            left = self._names[1:]
            self._cluster.lose_at(mishap_s, self._names[0], lambda: self._moved(left))
        elif mishap is Mishap.JOINS:
            new = f"box{len(self._names)}"
            names = [*self._names, new]
            self._cluster.join_at(mishap_s, self._view(new), self._maker(new), lambda: self._moved(names))
        self._cluster.run(self._scene.workload.arrivals)
        self._cluster.check()
        self._done.mishap_s = mishap_s
        self._done.boxes = {name: recorder.metrics() for name, recorder in self._recorders.items()}
        self._done.images_moved = self._cluster.images_sent
        self._done.stages = self._cluster.stages_sent
        self._done.head_s = self._cluster.head_s
        return self._done

    def _view(self, name: str) -> BoxView:
        return BoxView(name, self._scene.prices)

    def _moved(self, names: Sequence[str]) -> ExpertPlacement:
        before, self._homes = self._homes, self._scene.homes(names, self._homes)
        self._done.experts_moved = len(self._homes.moves_from(before))
        return self._homes

    def _rules(self, homes: ExpertPlacement, box: str, also: frozenset[str]) -> StageRules:
        graph = self._scene.fleet.rules.graph
        return stage_rules(graph, self._scene.followers, homes, box, also)

    def _maker(self, name: str) -> MakeBox:
        cold = name not in self._names

        def make(agenda: Agenda, rules: StageRules, oracle: Oracle, watcher: BoxWatcher) -> Simulator:
            scene = self._scene
            controller = Controller(
                router=rules.router,
                graph=rules.graph,
                costs=scene.costs,
                plan=scene.plan,
                strategy=scene.contender.strategy,
                max_wait_s=scene.max_wait_s,
            )
            self._recorders[name] = recorder = Recorder(controller.pools)
            watchers: list[Watcher] = [recorder, watcher]
            speeds = Speeds(scene.machine.scaling)
            return Simulator(controller, oracle, speeds=speeds, watchers=watchers, preloaded=not cold, agenda=agenda)

        return make


RECOVERY_S = 10.0
"""From so long after a mishap on, a cluster is compared with one that always had the boxes that are left."""


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One run. `of_bound` is its throughput as a share of that which no order on all boxes as one could beat.

    `images_moved` is how often an image went to a box, `experts_moved` how many experts got another home after the
    mishap. `recovered` is the throughput from `RECOVERY_S` after the mishap on, as a share of that of a cluster which
    had so many boxes from the beginning, for the same number of last images; None if no image was left by then.
    `head_us` is the time in which the head decides, for an image.
    """

    task: str
    device: str
    strategy: str
    boxes: int
    mishap: str
    images: int
    errors: int
    images_per_s: float
    of_bound: float
    switches: int
    lower_bound_switches: int
    images_moved: float
    p50_s: float
    p99_s: float
    makespan_s: float
    lower_bound_makespan_s: float
    head_us: float
    experts_moved: int | None = None
    recovered: float | None = None


class Rows:
    """Runs the clusters of a scene; a run that several rows compare with is made once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._runs: dict[int, ClusterRun] = {}
        self._bounds: dict[int, Bound] = {}

    def row(self, boxes: int, mishap: Mishap) -> ClusterRow:
        """Return the row of a run."""
        run = self._undisturbed(boxes)
        if mishap is Mishap.NONE:
            return self._row(boxes, mishap, run)
        other = self._undisturbed(boxes + (1 if mishap is Mishap.JOINS else -1))
        run = cluster_run(self._scene, boxes, mishap, run.makespan_s / 2)
        answered = run.answered_by(run.mishap_s + RECOVERY_S)
        rate = other.rate_after(answered)
        return self._row(boxes, mishap, run, run.rate_after(answered) / rate if rate else None)

    def _undisturbed(self, boxes: int) -> ClusterRun:
        if boxes not in self._runs:
            self._runs[boxes] = cluster_run(self._scene, boxes)
        return self._runs[boxes]

    def _row(self, boxes: int, mishap: Mishap, run: ClusterRun, recovered: float | None = None) -> ClusterRow:
        scene = self._scene
        if boxes not in self._bounds:
            self._bounds[boxes] = scene.least(boxes)
        least, images = self._bounds[boxes], len(run.verdicts)
        return ClusterRow(
            task=scene.workload.task,
            device=scene.machine.name,
            strategy=scene.contender.name,
            boxes=boxes,
            mishap=mishap.value,
            images=images,
            errors=run.failed,
            images_per_s=run.images_per_s,
            of_bound=least.makespan_s / run.makespan_s,
            switches=run.switches,
            lower_bound_switches=least.switches,
            images_moved=run.images_moved / images,
            p50_s=run.quantile_s(0.5),
            p99_s=run.quantile_s(0.99),
            makespan_s=run.makespan_s,
            lower_bound_makespan_s=least.makespan_s,
            head_us=1e6 * run.head_s / images,
            experts_moved=None if mishap is Mishap.NONE else run.experts_moved,
            recovered=recovered,
        )


def to_table(rows: Sequence[ClusterRow]) -> Table:
    """Return rows for people. A column that says nothing is left out."""
    return figures_table(_COLUMNS, rows, words=("task", "device", "strategy", "mishap"))


_COLUMNS: dict[str, Callable[[ClusterRow], str]] = {
    "task": lambda row: row.task,
    "device": lambda row: row.device,
    "strategy": lambda row: row.strategy,
    "boxes": lambda row: f"{row.boxes}",
    "mishap": lambda row: "" if row.mishap == Mishap.NONE else row.mishap,
    "images/s": lambda row: f"{row.images_per_s:.2f}",
    "of bound": lambda row: f"{row.of_bound:.2f}",
    "not inspected": lambda row: f"{row.errors}" if row.errors else "",
    "switches": lambda row: f"{row.switches:,}",
    "at least": lambda row: f"{row.lower_bound_switches:,}",
    "moves an image": lambda row: f"{row.images_moved:.2f}",
    "p50": lambda row: f"{row.p50_s:.1f} s",
    "p99": lambda row: f"{row.p99_s:.1f} s",
    "makespan": lambda row: f"{row.makespan_s:.1f} s",
    "head": lambda row: f"{row.head_us:.0f} µs",
    "experts moved": lambda row: "" if row.experts_moved is None else f"{row.experts_moved:,}",
    "recovered": lambda row: "" if row.recovered is None else f"{row.recovered:.2f}",
}
