"""A box and a workload in mixed precision: prepared variants, chosen as a line chooses them, with second looks.

All experts are blobs then, those in fp32 too. A line believes that every variant agrees with fp32; the share of its
findings that are in doubt is stated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coe import config
from coe.bench.simulated import PlannedBox
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.line_costs import LineCosts
from coe.scheduler.strategies import Strategy
from coe.sim.machine import Machine
from coe.sim.workload import Workload
from coe.store.manifest import Agreement, PreparedVariant

CONFIGURATION = "prepared"
"""The configuration of a preset that mixed runs use."""
_AGREES = Agreement(images=1, labels_equal=1.0, largest_score_difference=0.0)
_BELOW = 0.5
"""The margin under which a finding is in doubt; drawn findings have the margins 0 and 1."""


@dataclass(frozen=True, slots=True)
class MixedRun:
    """A workload whose experts run in chosen variants, the box that runs it, and sentences about the choice."""

    workload: Workload
    box: PlannedBox
    sentences: tuple[str, ...]


def mixed_run(
    machine: Machine, workload: Workload, strategy: Strategy, *, doubtful: float = config.ESCALATED_SHARE, warm: bool
) -> MixedRun:
    """Choose variants for a workload's board on a box, and divide the memory.

    The share `doubtful` of all findings of lesser variants is in doubt; decisions expect `config.ESCALATED_SHARE`, as
    in a line. If `warm`, host memory is full at time 0. Raises ConfigError if the box has no costs of prepared
    variants, or if the workload has recorded findings, which are those of one precision.
    """
    if workload.recorded:
        raise ConfigError(
            f"{workload.task} has the findings of one precision; --precision mixed is for tasks, which draw theirs"
        )
    if CONFIGURATION not in machine.preset.configurations:
        raise ConfigError(
            f"preset '{machine.name}' has no figures of prepared variants (no configuration '{CONFIGURATION}'); choose "
            "another --device, or leave --precision mixed out"
        )
    board = workload.board
    configuration = machine.configuration(CONFIGURATION, board.board)
    costs = machine.blob_costs(board, list(configuration.executors))
    offers: dict[str, dict[str, PreparedVariant]] = {id: {} for id in board.experts}
    for (_, id, variant), cost in costs.items():
        below = 0.0 if variant == FULL else _BELOW
        offers[id][variant] = PreparedVariant(
            file="", bytes=cost.weights_bytes, digest="", agreement=_AGREES, escalate_below=below
        )
    choice = precision.choose(
        "mixed",
        offers,
        board.graph,
        costs,
        machine.usable_bytes(configuration),
        pools=1 if strategy.single else sum(configuration.executors.values()),
    )
    applied, table = precision.applied(board, choice), LineCosts(costs, choice)
    plan = machine.plan(applied, table, strategy, configuration)
    box = PlannedBox(machine.name, table, plan, machine.scaling, warm)
    sentences = (choice.reason, _room(machine, board, applied, box))
    return MixedRun(replace(workload, board=applied, doubtful=doubtful), box, sentences)


def _room(machine: Machine, board: Rules, applied: Rules, box: PlannedBox) -> str:
    """Return a sentence that says whether all experts fit into the memories together."""
    device = box.plan.executors[0].device
    sizes = {id: box.costs(device, id).weights_bytes for id in applied.experts}
    first = sum(sizes[id] for id in board.experts)
    pools = sum(pool.capacity_bytes - pool.workspace_bytes for pool in box.plan.pools)
    copies = box.plan.cache.capacity_bytes if box.plan.cache else 0
    return (
        f"{machine.name}: the {len(board.experts)} experts take {format_bytes(first)}, their "
        f"{len(sizes) - len(board.experts)} second looks {format_bytes(sum(sizes.values()) - first)}; there are "
        f"{format_bytes(pools)} on the device and {format_bytes(copies)} in host memory"
    )
