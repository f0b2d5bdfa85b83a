"""Measures the time of a decision with many experts and many waiting stages; neither should matter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from coe.board import rules
from coe.board.rules import Rules
from coe.helpers.system import peak_resident_bytes
from coe.lab.workloads.workload import synthetic
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Command, Event
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import strategy
from coe.sim.agenda import Agenda
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator

EXECUTORS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """One measurement: the numbers of experts and requests, and the mean time of a decision on this machine.

    `most_waiting` is the most stages that waited at once, `wall_s` the time of the simulation, `peak_rss_bytes` the
    peak memory of this process so far.
    """

    strategy: str
    experts: int
    requests: int
    most_waiting: int
    switches: int
    events: int
    us_per_event: float
    us_per_request: float
    us_per_stage: float
    wall_s: float
    peak_rss_bytes: int


def synthetic_rules(experts: int) -> Rules:
    """Make a board of classifiers, one for each component type; half of them lead to a shared detector.

    One expert in twenty is a detector. Counts fall as 1 / rank, as they do on real boards.
    """
    detectors = max(1, experts // 20)
    lines = ["board: scale", "experts:"]
    names = [f"d{index}" for index in range(detectors)] + [f"c{index}" for index in range(experts - detectors)]
    lines += [f"  {name}: {{kind: k, labels: [ok, bad], input: 8, then: {{ok: OK, bad: NG}}}}" for name in names]
    lines.append("components:")
    for index in range(experts - detectors):
        then = f", then: {{ok: d{index % detectors}, bad: NG}}" if index % 2 or index < 2 * detectors else ""
        lines.append(f"  C{index}: {{count: {experts / (1 + index):.3f}, inspect: c{index}{then}}}")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "scale.yaml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return rules.load(path)


def measure(experts: int, requests: int, *, every_s: float = 0.0, name: str = "coserve") -> Scale:
    """Simulate requests to a board of which a tenth fits into memory: all at once, or one in each `every_s` seconds."""
    board = synthetic_rules(experts)
    cost = Cost(per_image_s=0.001, base_s=0.001, load_s=0.02, weights_bytes=100, activation_bytes=1, max_batch=16)
    costs = CostTable({("cpu", expert): cost for expert in board.experts})
    chosen = strategy(name)
    executors = 1 if chosen.single else EXECUTORS
    capacity = max(2, experts // 10 // executors) * 100 + 100
    ids = [f"cpu{index}" for index in range(executors)]
    plan = Plan(
        tuple(PoolSpec(id, "cpu", capacity, 100) for id in ids), tuple(ExecutorSpec(id, "cpu", id) for id in ids)
    )
    controller = Controller(router=board.router, graph=board.graph, costs=costs, plan=plan, strategy=chosen)
    counter, recorder = _EventCounter(controller), Recorder(controller.pools)
    simulator = Simulator(
        controller, SampledOracle(board), watchers=[counter, recorder], preloaded=True, agenda=Agenda(time.perf_counter)
    )
    workload = synthetic(board, task="scale", order="iid", requests=requests, every_s=every_s, seed=0)
    began = time.perf_counter()
    simulator.start()
    simulator.run(workload.arrivals)
    wall_s = time.perf_counter() - began
    controller.check(idle=True)
    metrics = recorder.metrics()
    return Scale(
        strategy=name,
        experts=experts,
        requests=requests,
        most_waiting=counter.most,
        switches=metrics.switches,
        events=counter.events,
        us_per_event=1e6 * metrics.control_s / counter.events,
        us_per_request=1e6 * metrics.control_s / requests,
        us_per_stage=1e6 * metrics.control_s / metrics.stages,
        wall_s=wall_s,
        peak_rss_bytes=peak_resident_bytes(),
    )


class _EventCounter:
    """Counts events, and the most stages that waited at once."""

    def __init__(self, controller: Controller) -> None:
        self._backlogs = controller.world.backlogs()
        self.events = self.most = 0

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        self.events += 1
        self.most = max(self.most, sum(map(len, self._backlogs)))
