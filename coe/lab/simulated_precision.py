"""A box and a workload of prepared experts, in variants chosen as a line chooses them.

All experts are blobs then, those in fp32 too. The share of the findings of lesser variants that are in doubt is stated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coe import config
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.precision import Costs, LineCosts
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import PlannedBox
from coe.lab.workloads.workload import Workload
from coe.scheduler.strategies import Strategy
from coe.store.manifest import Agreement, PreparedVariant

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
