"""Simulated clusters: a workload on several equal boxes in virtual time, by one strategy."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds, ExpertPlacement, Traffic
from coe.cluster.decisions.head import ClusterHead
from coe.cluster.decisions.place_experts import budget_of, needs_of, place_experts
from coe.cluster.decisions.routing import BoxView, Prices, ReplicaRouting, stage_prices
from coe.cluster.decisions.stage_rules import StageRules, stage_rules
from coe.core import Result, Verdict
from coe.lab.bounds.bound import Bound, bound
from coe.lab.cluster_simulator import BoxWatcher, ClusterSimulator, MakeBox, SimulatedNetwork
from coe.lab.fleet import Fleet
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import Contender
from coe.lab.workloads.workload import Workload
from coe.results.metrics import Metrics, Recorder, Watcher
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan
from coe.sim.agenda import Agenda
from coe.sim.oracle import Oracle, SampledOracle
from coe.sim.simulator import Simulator, Speeds


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
