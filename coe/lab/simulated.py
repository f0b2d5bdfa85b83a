"""Simulated runs: a workload on a preset's box by one strategy, as a row of the same table as a measured run."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache

from coe import config
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.precision import Costs, LineCosts
from coe.lab.bound import bound
from coe.lab.machine import Configuration, SimulatedMachine
from coe.lab.rows import Heading, Latencies, Row, row
from coe.lab.workloads.workload import Workload
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan
from coe.scheduler.policies.coserve import COSERVE
from coe.scheduler.strategies import Strategy, names, strategy
from coe.sim.agenda import Agenda, Arrival
from coe.sim.oracle import Oracle, RecordedOracle, SampledOracle
from coe.sim.simulator import Simulator, Speeds
from coe.store.manifest import Agreement, PreparedVariant

Scaling = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A strategy to compare, and the configuration of the box that it runs with."""

    name: str
    strategy: Strategy
    configuration: str


PAPER_DEFAULT = Contender("coserve-paper-default", COSERVE, "paper-default")
"""`coserve` with the paper's default configuration (section 5.2)."""


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


@cache
def all_contenders() -> dict[str, Contender]:
    """Return every installed strategy and the paper's default configuration, by name; raises ConfigError."""
    return {name: contender(name) for name in sorted([*names(), PAPER_DEFAULT.name])}


def contender(name: str) -> Contender:
    """Return a contender by name, or by the dotted path of its strategy; raises ConfigError.

    A `cached` strategy runs with the paper's default split: the paper tunes memory for CoServe alone. No other strategy
    is imported, so that a package that cannot be imported ends no run without its strategies.
    """
    if name == PAPER_DEFAULT.name:
        return PAPER_DEFAULT
    found = strategy(name)
    return Contender(found.name, found, "paper-default" if found.cached else "best")


def simulated_run(
    machine: SimulatedMachine,
    workload: Workload,
    contender: Contender,
    *,
    seed: int = 0,
    configuration: Configuration | None = None,
    max_wait_s: float | None = None,
) -> Row:
    """Run a workload on a box in virtual time, to the last reply; pools are full at first.

    Labels are drawn with `seed` where the workload has no recorded findings. `configuration` overrides the contender's,
    `max_wait_s` is for strategies that look at ages. Raises ConfigError if an expert does not fit or has no cost.
    """
    configuration = configuration or machine.configuration(contender.configuration, workload.board.board)
    costs = machine.costs(workload.board)
    plan = machine.plan(workload.board, costs, contender.strategy, configuration)
    box = PlannedBox(machine.name, costs, plan, machine.scaling)
    return run_plan(workload, contender, box, seed=seed, max_wait_s=max_wait_s)


def run_plan(
    workload: Workload,
    contender: Contender,
    box: PlannedBox,
    *,
    seed: int = 0,
    max_wait_s: float | None = None,
    settling: int = 0,
) -> Row:
    """Run a workload on given pools and executors in virtual time, as `simulated_run` does.

    Latencies are those of all images but the first `settling`.
    """
    board = workload.board
    oracle: Oracle = SampledOracle(board, seed, workload.doubtful)
    if workload.recorded:
        oracle = RecordedOracle(workload.recorded, oracle)
    controller = Controller(
        router=board.router,
        graph=board.graph,
        costs=box.costs,
        plan=box.plan,
        strategy=contender.strategy,
        max_wait_s=max_wait_s if contender.strategy.hurries else None,
        parts={"": workload.parts} if contender.strategy.foresees else {},
    )
    recorder = Recorder(controller.pools, board.router.second_looks)
    latencies = Latencies(settling)
    simulator = Simulator(
        controller,
        oracle,
        speeds=Speeds(box.scaling),
        watchers=[recorder, latencies],
        preloaded=True,
        agenda=Agenda(time.perf_counter),
    )
    simulator.start(warm=box.warm)
    resident = [expert for expert in board.experts if any(expert in pool for pool in controller.pools.values())]
    cached = [expert for expert in board.experts if controller.cache is not None and expert in controller.cache]
    simulator.run(workload.arrivals)
    controller.check(idle=True)
    heading = Heading(workload.task, workload.order, contender.name)
    made = row(heading, box.name, recorder.metrics(), latencies)
    least = bound(_from_zero(workload), oracle, box.costs, controller.plan, box.scaling, resident, cached)
    return replace(
        made,
        lower_bound_switches=least.switches,
        in_order_switches=least.in_order_switches,
        lower_bound_makespan_s=least.makespan_s,
    )


def _from_zero(workload: Workload) -> Workload:
    """Return a workload whose first request comes at time 0, as makespans count from there."""
    first_s = workload.arrivals[0].at_s if workload.arrivals else 0.0
    if not first_s:
        return workload
    return replace(workload, arrivals=[Arrival(a.at_s - first_s, a.request) for a in workload.arrivals])


# A box and a workload of prepared experts, in variants chosen as a line chooses them.
#
# All experts are blobs then, those in fp32 too. The share of the findings of lesser variants that are in doubt is
# stated.


CONFIGURATION = "prepared"
"""The configuration of a preset that runs of prepared experts use."""
MODE = "mixed"
_BELOW = 0.5
"""The margin under which a finding is in doubt; drawn findings have the margins 0 and 1."""
_AGREES = Agreement(images=1, labels_equal=1.0, largest_score_difference=0.0)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run of prepared experts states.

    The share `doubtful` of all findings of lesser variants is in doubt; decisions expect `config.ESCALATED_SHARE`, as
    in a line. If `warm`, host memory is full at time 0.
    """

    doubtful: float = config.ESCALATED_SHARE
    warm: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A workload of prepared experts, the box that runs it, and sentences about the variants."""

    workload: Workload
    box: PlannedBox
    sentences: tuple[str, ...]


def prepared_run(machine: SimulatedMachine, workload: Workload, strategy: Strategy, prepared: Prepared) -> PreparedRun:
    """Give a workload's experts variants on a box, and divide the memory.

    Raises ConfigError if the box has no costs of prepared variants.
    """
    board = workload.board
    try:
        configuration = machine.configuration(CONFIGURATION, board.board)
    except ConfigError as error:
        raise ConfigError(
            f"no figures of prepared variants: {error}; choose another --device, or leave --precision {MODE} out"
        ) from None
    costs, floor = machine.blob_costs(board, list(configuration.executors)), config.LABEL_FLOOR
    offers = _offers(costs)
    variants = {id: precision.allowed(MODE, offers[id], list(configuration.executors), floor) for id in board.experts}
    choice = precision.choose(MODE, offers, variants, costs, floor)
    applied = precision.apply_choice(board, choice)
    table = LineCosts(costs, choice)
    plan = machine.plan(applied, table, strategy, configuration)
    box = PlannedBox(machine.name, table, plan, machine.scaling, prepared.warm)
    sentences = (choice.reason, _room(machine, board, applied, box))
    return PreparedRun(replace(workload, board=applied, doubtful=prepared.doubtful), box, sentences)


def _offers(costs: Costs) -> dict[str, dict[str, PreparedVariant]]:
    """Return the variants of each expert, all of which agree."""
    offers: dict[str, dict[str, PreparedVariant]] = {}
    for (_, id, variant), cost in costs.items():
        below = 0.0 if variant == FULL else _BELOW
        offers.setdefault(id, {})[variant] = PreparedVariant(
            file="", bytes=cost.weights_bytes, digest="", agreement=_AGREES, escalate_below=below
        )
    return offers


def _room(machine: SimulatedMachine, board: Rules, applied: Rules, box: PlannedBox) -> str:
    """Return a sentence that says whether all experts fit into the memories together."""
    device = box.plan.executors[0].device
    costs = {id: box.costs(device, id) for id in applied.experts}
    first = sum(costs[id].weights_bytes for id in board.experts)
    again = sum(cost.weights_bytes for cost in costs.values()) - first
    pools = sum(pool.capacity_bytes - pool.workspace_bytes for pool in box.plan.pools)
    copies = box.plan.cache.capacity_bytes if box.plan.cache else 0
    return (
        f"{machine.name}: the {len(board.experts)} experts take {format_bytes(first)}, their "
        f"{len(costs) - len(board.experts)} second looks {format_bytes(again)}; "
        f"there are {format_bytes(pools)} on the device and {format_bytes(copies)} in host memory"
    )
