"""Opening a line, before any of its threads: its parts are read, measured, and checked to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coe.board import parts, rules
from coe.board.rules import Rules
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import assembly, fitting, precision, references
from coe.inspector.cores import chosen_threads
from coe.inspector.line_config import LineConfig
from coe.inspector.line_costs import LineCosts
from coe.inspector.measuring import file_bytes, measure
from coe.inspector.memory import experts_bytes, fixed_bytes, planned
from coe.inspector.precision import Choice
from coe.inspector.settings import Settings, settle
from coe.runtime.device import Device
from coe.runtime.reference_source import ReferenceSource
from coe.scheduler.costs import Cost
from coe.scheduler.plan import Plan
from coe.store import kinds
from coe.store.kinds import FileKind, Kind
from coe.store.manifest import Manifest
from coe.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Lineup:
    """A board with its experts in their chosen variants, the cost of each, and the choice with its reason."""

    board: Rules
    costs: LineCosts
    choice: Choice


@dataclass(frozen=True, slots=True)
class Assembly:
    """A line without its threads: the board with experts in their chosen variants, their costs, devices and pools.

    `file_bytes` is, by expert, the size of the file that it runs from. `references` are by component.
    """

    board: Rules
    kinds: Mapping[str, Kind]
    settings: Settings
    devices: Mapping[str, Device]
    costs: LineCosts
    plan: Plan
    file_bytes: Mapping[str, int]
    references: Mapping[str, ReferenceSource]

    @property
    def budget_bytes(self) -> int:
        """The bytes that all devices may take for experts, batches and images under way."""
        sizes = [device.memory_bytes for device in self.devices.values()]
        return sum(self.settings.memory_bytes if size is None else size for size in sizes)


def assemble(config: LineConfig) -> Assembly:
    """Read a board and its experts, make the devices, measure unknown costs, and divide the memory.

    Raises ConfigError, RulesError or StoreError for a config that cannot work.
    """
    named = rules.load(config.board)
    names = sorted({expert.kind for expert in named.experts.values()})
    known = {name: kinds.resolve(name, config.allowed_kinds) for name in names}
    named.check_detectors(id for id, e in named.experts.items() if known[e.kind].task == "detect")
    references.check(named, known)
    parts.check(config.parts, named.components, named.board)
    manifests = fitting.manifests(named, config.store)
    good_parts = references.load(named, config.store)
    settings = settle(named, config.asked, single=config.strategy.single, say=config.say)
    devices = (config.make_devices or assembly.devices)(
        settings.executors,
        Snapshot(config.store, manifests),
        known,
        chosen_threads(settings.executors, settings.threads, config.free_cores, config.say),
        gpu=assembly.GpuSettings(settings.device_bytes, settings.host_bytes, config.asked.search_kernels),
        say=config.say,
    )
    lineup = line_up(config, named, manifests, devices, known, settings)
    for id, device in devices.items():
        device.prepare(lineup.board.experts.values(), settings.executors[id])
    plan = planned(
        settings,
        devices,
        lineup.board.experts,
        lineup.costs,
        with_images=config.inbox.limit_bytes is None,
        demotes=not config.strategy.cached,
    )
    plan = replace(plan, executors=tuple(replace(one, depth=devices[one.device].depth) for one in plan.executors))
    return Assembly(
        lineup.board,
        known,
        settings,
        devices,
        lineup.costs,
        config.strategy.pooled(plan),
        file_bytes(lineup.board, manifests),
        good_parts,
    )


def line_up(
    config: LineConfig,
    board: Rules,
    manifests: Mapping[str, Manifest],
    devices: Mapping[str, Device],
    known: Mapping[str, Kind],
    settings: Settings,
) -> Lineup:
    """Choose the variants that a board's experts run in; measure their costs unless `config.costs` holds them.

    `manifests` are by weights.
    """
    mode, floor = config.precision, config.label_floor
    offers = {
        expert.id: {str(variant): blob for variant, blob in manifests[expert.weights].variants.items()}
        for expert in board.experts.values()
        if not isinstance(known[expert.kind], FileKind)
    }
    usable = {id: precision.allowed(mode, offers.get(id, {}), devices, floor) for id in board.experts}
    candidates = {
        (id, variant): replace(board.experts[id], variant=variant)
        for id, variants in usable.items()
        for variant in dict.fromkeys((FULL, *variants))
    }
    if config.costs is not None:
        costs = config.costs.by_variant
    else:
        disk_bytes_per_s, profile = config.disk_bytes_per_s, settings.profile
        costs = measure(candidates.values(), devices, manifests, known, config.say, disk_bytes_per_s, profile)
    costs = {(device, *key): _known(costs, device, *key) for device in devices for key in candidates}
    choice = precision.choose(
        mode,
        offers,
        board.graph,
        costs,
        experts_bytes(settings, devices),
        floor,
        pools=sum(settings.executors.values()),
        fixed_bytes=lambda pairs: fixed_bytes(devices, [candidates[pair] for pair in pairs], settings.executors),
    )
    if mode != FULL:
        config.say(choice.reason)
    return Lineup(precision.applied(board, choice), LineCosts(costs, choice), choice)


def _known(costs: precision.Costs, device: str, expert: str, variant: str) -> Cost:
    try:
        return costs[device, expert, variant]
    except KeyError:
        raise ConfigError(f"no cost is known for expert '{expert}' in {variant} on device '{device}'") from None
