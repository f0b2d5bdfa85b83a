"""A box and a workload of prepared experts: in fp32, in variants chosen as a line chooses them, or chosen at each load.

All experts are blobs then, those in fp32 too. The share of experts whose lesser variants agree with fp32 is stated, and
so is the share of their findings that are in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import xxhash

from coe import config
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.precision import LineCosts, VariantChoice
from coe.inspector.variant_knapsack import Costs
from coe.lab.machine import Configuration, SimulatedMachine
from coe.lab.simulated import PlannedBox
from coe.lab.strategies.by_load import ByLoad, OnMiss, Urgent
from coe.lab.workloads.workload import Workload
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.strategies import Strategy
from coe.store.manifest import Agreement, PreparedVariant

CONFIGURATION = "prepared"
"""The configuration of a preset that runs of prepared experts use."""
BLOBS, MIXED = "blobs", "mixed"
AT_LOADS: dict[str, type[ByLoad]] = {"on-miss": OnMiss, "urgent": Urgent}
"""What chooses at each load."""
MODES = (BLOBS, MIXED, *AT_LOADS)
_BELOW = 0.5
"""The margin under which a finding is in doubt; drawn findings have the margins 0 and 1."""


@dataclass(frozen=True, slots=True)
class VariantShares:
    """Which variants prepared experts have: the mode, and the shares that nobody can choose.

    In the share `sound` of the experts the labels of lesser variants agree with those of fp32; the other experts run in
    fp32 alone. The share `doubtful` of all findings of lesser variants is in doubt; decisions expect
    `config.ESCALATED_SHARE`, as in a line. If `warm`, host memory is full at time 0.
    """

    mode: str
    sound: float = 1.0
    doubtful: float = config.ESCALATED_SHARE
    warm: bool = False

    @property
    def at_loads(self) -> bool:
        """Whether each load chooses, so that the bound, which knows one variant of each expert, says nothing."""
        return self.mode in AT_LOADS

    @property
    def words(self) -> str:
        """The words that name a run in a row."""
        sound = f" sound {self.sound:g}" if self.sound < 1 and self.mode != BLOBS else ""
        return f"{self.mode}{sound}"


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A workload of prepared experts, the strategy and the box that run it, and sentences about the variants."""

    workload: Workload
    strategy: Strategy
    box: PlannedBox
    sentences: tuple[str, ...]


def prepared_run(
    machine: SimulatedMachine, workload: Workload, strategy: Strategy, prepared: VariantShares
) -> PreparedRun:
    """Give a workload's experts variants on a box, and divide the memory.

    Raises ConfigError if the box has no costs of prepared variants, or if the workload has recorded findings, which are
    those of one precision.
    """
    if workload.recorded:
        raise ConfigError(
            f"{workload.task} has the findings of one precision; --precision {prepared.mode} is for tasks, which draw "
            "theirs"
        )
    board = workload.board
    try:
        configuration = machine.configuration(CONFIGURATION, board.board)
    except ConfigError as error:
        raise ConfigError(
            f"no figures of prepared variants: {error}; choose another --device, or leave --precision {prepared.mode} "
            "out"
        ) from None
    costs = machine.blob_costs(board, list(configuration.executors))
    offers = _offers(costs, prepared.sound)
    choice = _choice(prepared.mode, offers, board, costs, machine, strategy, configuration)
    applied = precision.apply_choice(board, choice)
    table: CostTable = LineCosts(costs, choice)
    if prepared.at_loads:
        strategy = replace(strategy, residency=AT_LOADS[prepared.mode])
        table = _choosing(table, costs, choice, applied)
    plan = machine.plan(applied, table, strategy, configuration)
    box = PlannedBox(machine.name, table, plan, machine.scaling, prepared.warm)
    sentences = (choice.reason, _room(machine, board, applied, box))
    return PreparedRun(replace(workload, board=applied, doubtful=prepared.doubtful), strategy, box, sentences)


def _offers(costs: Costs, sound: float) -> dict[str, dict[str, PreparedVariant]]:
    """Return the variants of each expert; a number that depends on its id alone says whether its labels agree."""
    offers: dict[str, dict[str, PreparedVariant]] = {}
    for (_, id, variant), cost in costs.items():
        agrees = xxhash.xxh3_64_intdigest(f"sound/{id}".encode()) / 2**64 < sound
        agreement = Agreement(images=1, labels_equal=1.0 if agrees else 0.0, largest_score_difference=0.0)
        below = 0.0 if variant == FULL else _BELOW
        offers.setdefault(id, {})[variant] = PreparedVariant(
            file="", bytes=cost.weights_bytes, digest="", agreement=agreement, escalate_below=below
        )
    return offers


def _choice(
    mode: str,
    offers: dict[str, dict[str, PreparedVariant]],
    board: Rules,
    costs: Costs,
    machine: SimulatedMachine,
    strategy: Strategy,
    configuration: Configuration,
) -> VariantChoice:
    if mode == MIXED:
        pools = 1 if strategy.single else sum(configuration.executors.values())
        return precision.choose(MIXED, offers, board.graph, costs, machine.usable_bytes(configuration), pools=pools)
    devices = sorted({device for device, _, _ in costs})
    usable = "mixed" if mode in AT_LOADS else FULL
    variants = {id: precision.allowed(usable, offers[id], devices, config.LABEL_FLOOR)[-1] for id in board.experts}
    lesser = [id for id, variant in variants.items() if variant != FULL]
    words = f"{len(lesser)} of {len(variants)} experts may be loaded in a lesser variant"
    return VariantChoice(variants, dict.fromkeys(lesser, _BELOW), reason=f"precision {mode}: {words}")


def _choosing(table: CostTable, costs: Costs, choice: VariantChoice, applied: Rules) -> CostTable:
    """Return the same costs, and a choice at each load between fp32 and the coarsest variant that is allowed."""
    devices = table.devices()
    return CostTable(
        {(device, id): table(device, id) for device in devices for id in applied.experts},
        {
            (device, id, variant): costs[device, id, variant]
            for device in devices
            for id in choice.escalate_below
            for variant in (FULL, choice.variants[id])
        },
    )


def _room(machine: SimulatedMachine, board: Rules, applied: Rules, box: PlannedBox) -> str:
    """Return a sentence that says whether all experts fit into the memories together."""
    device = box.plan.executors[0].device
    costs = {id: box.costs(device, id) for id in applied.experts}
    first = _together_bytes(costs[id] for id in board.experts)
    pools = sum(pool.capacity_bytes - pool.workspace_bytes for pool in box.plan.pools)
    copies = box.plan.cache.capacity_bytes if box.plan.cache else 0
    return (
        f"{machine.name}: the {len(board.experts)} experts take {format_bytes(first)}, their "
        f"{len(costs) - len(board.experts)} second looks {format_bytes(_together_bytes(costs.values()) - first)}; "
        f"there are {format_bytes(pools)} on the device and {format_bytes(copies)} in host memory"
    )


def _together_bytes(costs: Iterable[Cost]) -> int:
    """Return the bytes of experts that are all in one memory: each body counts once."""
    bodies: dict[str, int] = {}
    own = 0
    for cost in costs:
        own += cost.weights_bytes
        if cost.body is not None:
            bodies[cost.body.id] = cost.body.bytes
    return own + sum(bodies.values())
