"""What a decision costs when there are many experts and many stages wait: it should not matter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from coe.board import rules
from coe.board.rules import Rules
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Command, Event
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import strategy
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator
from coe.sim.workload import synthetic
from coe.system import peak_resident_bytes

EXECUTORS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """One point: how many experts and requests, and what deciding took on average of the machine that this ran on.

    `most_waiting` is the most stages that waited at once, `wall_s` what the simulation took, `peak_rss_bytes` the most
    memory that this process has had so far.
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
    """Make a board of classifiers, each with its own component type, and a shared detector behind each tenth of them.

    Counts fall as 1 / rank, as they do on real boards.
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
    """Simulate requests (all at once unless `every_s` says otherwise) to a board of which a tenth fits into memory."""
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
    crowd, recorder = _Crowd(controller), Recorder(controller.pools)
    simulator = Simulator(
        controller, SampledOracle(board), watchers=[crowd, recorder], preloaded=True, clock=time.perf_counter
    )
    work = synthetic(board, task="scale", order="iid", requests=requests, every_s=every_s, seed=0)
    began = time.perf_counter()
    simulator.start()
    simulator.run(work.arrivals)
    wall_s = time.perf_counter() - began
    controller.check(idle=True)
    seen = recorder.metrics()
    return Scale(
        strategy=name,
        experts=experts,
        requests=requests,
        most_waiting=crowd.most,
        switches=seen.switches,
        events=crowd.events,
        us_per_event=1e6 * seen.control_s / crowd.events,
        us_per_request=1e6 * seen.control_s / requests,
        us_per_stage=1e6 * seen.control_s / seen.stages,
        wall_s=wall_s,
        peak_rss_bytes=peak_resident_bytes(),
    )


class _Crowd:
    """Counts events, and how many stages wait."""

    def __init__(self, controller: Controller) -> None:
        self._backlogs = controller.world.backlogs()
        self.events = self.most = 0

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        self.events += 1
        self.most = max(self.most, sum(map(len, self._backlogs)))
