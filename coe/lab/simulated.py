"""Simulated runs: a workload on a preset's box by one strategy, as a row of the same table as a measured run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.lab.bounds.bound import bound
from coe.lab.chrome_trace import ChromeTrace
from coe.lab.machine import Configuration, SimulatedMachine
from coe.lab.rows import Heading, Latencies, Row, row
from coe.lab.time_limits import ANY_TIME, Times
from coe.lab.workloads.workload import Workload
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan
from coe.scheduler.strategies import Strategy, strategy
from coe.sim.agenda import Agenda, Arrival
from coe.sim.oracle import Oracle, RecordedOracle, SampledOracle
from coe.sim.simulator import Simulator, Speeds

Scaling = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A strategy to compare, and the configuration of the box that it runs with."""

    name: str
    strategy: Strategy
    configuration: str


@dataclass(frozen=True, slots=True)
class PlannedBox:
    """A box with a plan: the costs of experts, its pools and executors, and the executors' joint speed by device.

    If it is `warm`, host memory is full at time 0.
    """

    name: str
    costs: CostTable
    plan: Plan
    scaling: Scaling
    warm: bool = False


def contender(name: str) -> Contender:
    """Return the contender of a strategy's name; raises ConfigError.

    A `cached` strategy runs with the paper's default split: the paper tunes memory for CoServe alone.
    """
    found = strategy(name)
    return Contender(found.name, found, "paper-default" if found.cached else "best")


def simulated_run(
    machine: SimulatedMachine,
    workload: Workload,
    contender: Contender,
    *,
    seed: int = 0,
    configuration: Configuration | None = None,
    bounded: bool = True,
    trace: Path | None = None,
    times: Times = ANY_TIME,
) -> Row:
    """Run a workload on a box in virtual time, to the last reply; pools are full at first unless the workload is cold.

    Labels are drawn with `seed` where the workload has no recorded findings. `configuration` overrides the contender's,
    `bounded` computes the clairvoyant bound, `trace` is a file for the events in their order. Raises ConfigError if an
    expert does not fit or has no cost.
    """
    configuration = configuration or machine.configuration(contender.configuration, workload.board.board)
    costs = machine.costs(workload.board)
    plan = machine.plan(workload.board, costs, contender.strategy, configuration)
    box = PlannedBox(machine.name, costs, plan, machine.scaling)
    return run_plan(workload, contender, box, seed=seed, bounded=bounded, trace=trace, times=times)


def run_plan(
    workload: Workload,
    contender: Contender,
    box: PlannedBox,
    *,
    seed: int = 0,
    bounded: bool = True,
    trace: Path | None = None,
    times: Times = ANY_TIME,
) -> Row:
    """Run a workload on given pools and executors in virtual time, as `simulated_run` does."""
    board = workload.board
    heeded = times.heeded_by(contender.strategy)
    oracle: Oracle = SampledOracle(board, seed, workload.doubtful)
    if workload.recorded:
        oracle = RecordedOracle(workload.recorded, oracle)
    controller = Controller(
        router=board.router,
        graph=board.graph,
        costs=box.costs,
        plan=box.plan,
        strategy=contender.strategy,
        max_wait_s=heeded.max_wait_s,
        parts={"": workload.parts} if contender.strategy.foresees else {},
    )
    recorder = Recorder(controller.pools, board.router.second_looks)
    latencies = Latencies(workload.settling)
    drawing = ChromeTrace(controller.executors, controller.pools) if trace else None
    simulator = Simulator(
        controller,
        oracle,
        speeds=Speeds(box.scaling),
        watchers=[recorder, latencies, *([drawing] if drawing else [])],
        span=drawing.span if drawing else None,
        preloaded=not workload.cold,
        agenda=Agenda(time.perf_counter),
    )
    simulator.start(warm=box.warm)
    resident = [expert for expert in board.experts if any(expert in pool for pool in controller.pools.values())]
    cached = [expert for expert in board.experts if controller.cache is not None and expert in controller.cache]
    simulator.run(_due(workload.arrivals, heeded.within_s))
    controller.check(idle=True)
    if drawing is not None and trace is not None:
        drawing.write(trace)
    heading = Heading(workload.task, workload.order, contender.name)
    made = row(heading, box.name, recorder.metrics(), latencies, within_s=times.within_s)
    if workload.cold or not bounded:
        return made
    least = bound(_from_zero(workload), oracle, box.costs, controller.plan, box.scaling, resident, cached)
    return replace(
        made,
        lower_bound_switches=least.switches,
        in_order_switches=least.in_order_switches,
        lower_bound_makespan_s=least.makespan_s,
    )


def _due(arrivals: Sequence[Arrival], within_s: float | None) -> Iterable[Arrival]:
    if within_s is None:
        return arrivals
    return (replace(a, request=replace(a.request, due_s=a.at_s + within_s)) for a in arrivals)


def _from_zero(workload: Workload) -> Workload:
    """Return a workload whose first request comes at time 0, as makespans count from there."""
    first_s = workload.arrivals[0].at_s if workload.arrivals else 0.0
    if not first_s:
        return workload
    return replace(workload, arrivals=[Arrival(a.at_s - first_s, a.request) for a in workload.arrivals])
