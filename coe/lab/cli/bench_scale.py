"""`coe-bench scale`: measures the time of a decision with thousands of experts and very many waiting images."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.options import JsonOption, Options, check_json, finite, option, words_of
from coe.errors import ConfigError
from coe.helpers.system import peak_resident_bytes
from coe.lab.cli.bench_out import show_figures
from coe.lab.rows import figures_table
from coe.lab.workloads.workload import synthetic
from coe.results.metrics import Recorder
from coe.scheduler import strategies
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Command, Event
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.sim.agenda import Agenda
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator

EXECUTORS = 4


@dataclass(frozen=True, slots=True)
class ScaleRow:
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
    return rules.of_bytes(Path("scale.yaml"), "\n".join(lines).encode())


def measure(experts: int, requests: int, *, every_s: float = 0.0, name: str = "coserve") -> ScaleRow:
    """Simulate requests to a board of which a tenth fits into memory: all at once, or one in each `every_s` seconds."""
    board = synthetic_rules(experts)
    cost = Cost(per_image_s=0.001, base_s=0.001, load_s=0.02, weights_bytes=100, activation_bytes=1, max_batch=16)
    costs = CostTable({("cpu", expert): cost for expert in board.experts})
    chosen = strategies.strategy(name)
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
    return ScaleRow(
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


class Scale(Options):
    """Measure how long scheduling decisions take on this machine. No model runs.

    A tenth of the experts fits into memory. Column "deciding" is the mean time for an event, such as an arriving image.
    It should hardly grow with the number of experts or of waiting images.

    Example: coe-bench scale --experts 10000 --requests 1000000 --every 4
    """

    experts: str = option("Numbers of experts on the board, separated by commas.", "300,3000,10000", metavar="LIST")
    requests: str = option("Numbers of images, separated by commas.", "1000,10000,100000", metavar="LIST")
    every_ms: float = option(
        "Time between images in milliseconds. Default: all at once.",
        0.0,
        "--every",
        min=0,
        max=1e6,
        callback=finite,
        metavar="MS",
    )
    strategy: str = option("One or more, separated by commas.", config.STRATEGY, metavar="LIST|all")
    json_to: JsonOption = None

    def run(self) -> None:
        sizes = [(e, r) for e in _numbers("--experts", self.experts) for r in _numbers("--requests", self.requests)]
        check_json(self.json_to)
        chosen = strategies.names() if self.strategy.strip() == "all" else words_of(self.strategy)
        for name in chosen:
            strategies.strategy(name)
        runs = [partial(measure, e, r, every_s=self.every_ms / 1e3, name=name) for name in chosen for e, r in sizes]
        columns: dict[str, Callable[[ScaleRow], str]] = {
            "strategy": lambda point: point.strategy,
            "experts": lambda point: f"{point.experts:,}",
            "images": lambda point: f"{point.requests:,}",
            "most waiting": lambda point: f"{point.most_waiting:,}",
            "switches": lambda point: f"{point.switches:,}",
            "deciding": lambda point: f"{point.us_per_event:.0f} µs",
            "an image": lambda point: f"{point.us_per_request:.0f} µs",
            "a stage": lambda point: f"{point.us_per_stage:.0f} µs",
            "run": lambda point: f"{point.wall_s:.1f} s",
            "memory": lambda point: config.format_bytes(point.peak_rss_bytes),
        }
        with Progress(console=err, transient=True) as bar:
            points = [run() for run in bar.track(runs, description="deciding")]
        show_figures(figures_table(columns, points, words=("strategy",)), points, self.json_to)


def _numbers(option: str, text: str) -> list[int]:
    numbers = words_of(text)
    for number in numbers:
        if not (number.isdecimal() and len(number) <= 9) or not 40 <= int(number) <= 10_000_000:
            raise ConfigError(f"{option}: '{number}' is not a number between 40 and 10,000,000")
    return [int(number) for number in numbers]
