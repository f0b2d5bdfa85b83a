"""Opening a line, before any of its threads: its parts are read, measured, and checked to fit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coe.board import parts_list, rules
from coe.board.rules import Rules
from coe.board.union import union
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import line_devices, line_references, precision, weights_used
from coe.inspector.asked_boards import AskedBoard
from coe.inspector.line_boards import LineBoard, ReadBoard, Register
from coe.inspector.line_devices import choose_threads
from coe.inspector.line_options import LineOptions
from coe.inspector.measuring import file_bytes, measure
from coe.inspector.memory_split import images_budget
from coe.inspector.precision import Costs, LineCosts, VariantChoice
from coe.inspector.settings import Settings, fixed_bytes, plan_pools, settle
from coe.inspector.weights_used import reference_digests
from coe.runtime.copy_lane import Disk, Throttle
from coe.runtime.device import Device
from coe.runtime.inputs import Decoding
from coe.scheduler.costs import Cost
from coe.scheduler.plan import Plan
from coe.store import runnable_kinds
from coe.store.manifest import Manifest
from coe.store.runnable_kinds import RunnableKind, SessionKind
from coe.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Lineup:
    """A board with its experts in their chosen variants, the cost of each, and the choice with its reason."""

    board: Rules
    costs: LineCosts
    choice: VariantChoice


@dataclass(frozen=True, slots=True)
class Assembly:
    """A line without its threads: its boards, their experts in the chosen variants, the costs, devices and pools.

    `rules` are those of all boards together. `file_bytes` are, by expert, the sizes of what a load reads. `kinds`,
    these sizes and `store` grow when other boards come, because devices and threads hold them. The pools of `plan` are
    not joined yet. `fixed_bytes` is, by device, what is held for good beside the pools. `proved` are files of weights
    that were read from end to end, as `coe.runtime.trial.identity` tells them.
    """

    options: LineOptions
    boards: tuple[LineBoard, ...]
    register: Register
    rules: Rules
    kinds: dict[str, RunnableKind]
    settings: Settings
    store: Snapshot
    devices: Mapping[str, Device]
    lineup: Lineup
    plan: Plan
    file_bytes: dict[str, int]
    fixed_bytes: Mapping[str, int]
    proved: set[Hashable] = field(default_factory=set)

    @property
    def costs(self) -> LineCosts:
        """The cost of each expert."""
        return self.lineup.costs

    @property
    def budget_bytes(self) -> int:
        """The bytes that all devices may take for experts, batches and images under way."""
        sizes = [device.memory_bytes for device in self.devices.values()]
        return sum(self.settings.memory_bytes if size is None else size for size in sizes)

    def disk(self) -> Disk:
        """Return the disk that the line reads from, no faster than its options say."""
        bandwidth = self.options.disk_bandwidth
        throttle = None if bandwidth is None else Throttle(bandwidth)
        return Disk(self.file_bytes, throttle)

    def decoding(self) -> Decoding:
        """Return how many pictures the line decodes at a time, and in how much memory."""
        images = images_budget(self.settings.memory_bytes, self.options.inbox_bytes)
        return Decoding(line_devices.decode_workers(), images.decoding_bytes, images.ahead_bytes)


def read_board(options: LineOptions, asked: AskedBoard) -> ReadBoard:
    """Read a board, the manifests of its experts and its references; prove that they fit each other.

    Raises ConfigError, RulesError or StoreError.
    """
    named = rules.load(asked.source)
    if asked.name:
        named = replace(named, board=asked.name)
    known = kinds_of(options, named)
    runnable_kinds.check_experts(named.experts.values(), known, named.path.name)
    named.check_detectors(id for id, e in named.experts.items() if known[e.kind].task == "detect")
    line_references.check(named, known)
    parts_list.check(asked.parts, named.components, named.board)
    manifests = weights_used.read_manifests(named, options.store)
    for warning in weights_used.warnings(named, manifests, asked.parts):
        options.say(f"warning: {warning}")
    good_parts, digests = line_references.load(named, options.store), reference_digests(named, options.store)
    line_references.check_learned(named, known, manifests, digests)
    return ReadBoard(str(asked.source), named, manifests, good_parts, digests, asked.mix, asked.parts)


def read_boards(options: LineOptions, asked: Sequence[AskedBoard]) -> list[ReadBoard]:
    """Read boards; raises ConfigError, RulesError or StoreError, and ConfigError if two have one name."""
    read = [read_board(options, board) for board in asked]
    for number, board in enumerate(read):
        if any(other.rules.board == board.rules.board for other in read[:number]):
            raise ConfigError(
                f"{board.rules.path.name} is board '{board.rules.board}', and so is another file; a line tells boards "
                "apart by this name, so give one of them another"
            )
    return read


def kinds_of(options: LineOptions, board: Rules) -> dict[str, RunnableKind]:
    """Return the kinds of a board's experts, by name; raises ConfigError."""
    names = sorted({expert.kind for expert in board.experts.values()})
    return {name: runnable_kinds.resolve(name, options.allow_kinds) for name in names}


def assemble(options: LineOptions) -> Assembly:
    """Read the boards and their experts, make the devices, measure unknown costs, and divide the memory.

    Raises ConfigError, RulesError or StoreError for options that cannot work.
    """
    return assemble_read(options, read_boards(options, options.boards))


def assemble_read(options: LineOptions, read: Sequence[ReadBoard]) -> Assembly:
    """Do as `assemble` does with boards that are read already; raises ConfigError or StoreError."""
    register = Register(options.precision)
    boards = tuple(register.enrol(board, alone=len(read) == 1) for board in read)
    joined = union([board.member for board in boards])
    known = kinds_of(options, joined)
    settings = settle(joined, options)
    store = Snapshot(options.store, {})
    store.take(register.manifests, register.places)
    devices = (options.experiment.make_devices or line_devices.make)(
        settings.executors,
        store,
        known,
        choose_threads(settings.executors, settings.threads, options.experiment.free_cores, options.say),
        gpu=line_devices.GpuSettings(settings.device_bytes, settings.host_bytes, options.search_kernels),
        say=options.say,
    )
    lineup = line_up(options, joined, register.manifests, devices, known, settings)
    for id, device in devices.items():
        device.prepare(lineup.board.experts.values(), settings.executors[id])
    plan = plan_pools(
        settings,
        devices,
        lineup.board.experts,
        lineup.costs,
        with_images=options.inbox_bytes is None,
        demotes=not options.strategy.cached,
    )
    plan = replace(
        plan, executors=tuple(replace(executor, depth=devices[executor.device].depth) for executor in plan.executors)
    )
    return Assembly(
        options,
        boards,
        register,
        lineup.board,
        known,
        settings,
        store,
        devices,
        lineup,
        plan,
        file_bytes(lineup.board, register.manifests, whole=not all(one.holds_bodies for one in devices.values())),
        fixed_bytes(devices, list(lineup.board.experts.values()), settings.executors),
    )


def line_up(
    options: LineOptions,
    board: Rules,
    manifests: Mapping[str, Manifest],
    devices: Mapping[str, Device],
    known: Mapping[str, RunnableKind],
    settings: Settings,
    before: Lineup | None = None,
) -> Lineup:
    """Choose the variants that a board's experts run in; measure their costs unless the experiment's costs hold them.

    `manifests` are by weights. Experts that the line-up `before` knows keep their variants and costs.
    """
    mode, floor = options.precision, options.experiment.label_floor
    # A file has no variants but `int8`; other experts that are not prepared are told in any case.
    files_too = mode == "mixed" and set(devices) == {"cpu"}
    offers = {
        expert.id: {str(variant): blob for variant, blob in manifests[expert.weights].variants.items()}
        for expert in board.experts.values()
        if not isinstance(kind := known[expert.kind], SessionKind)
        or (files_too and kind.has_int8 and not manifests[expert.weights].no_int8)
    }
    variants = {id: precision.allowed(mode, offers.get(id, {}), devices, floor) for id in board.experts}
    candidates = {
        (id, each): replace(board.experts[id], variant=each)
        for id, variant in variants.items()
        for each in dict.fromkeys((FULL, variant))
    }
    if options.experiment.costs is not None and before is None:
        costs = options.experiment.costs.by_variant
    else:
        earlier, present = (before.costs.by_variant, before.board.experts) if before else ({}, {})
        known_ones = [replace(present[id], variant=variant) for _, id, variant in earlier if id in present]
        samples = list(dict.fromkeys([*candidates.values(), *known_ones]))
        costs = measure(
            samples, devices, manifests, known, options.say, options.disk_bandwidth, settings.profile, earlier
        )
    closed = {key for key in candidates if key[1] == "int8" and any((name, *key) not in costs for name in devices)}
    variants = {id: FULL if (id, variant) in closed else variant for id, variant in variants.items()}
    costs = {(device, *key): _known(costs, device, *key) for device in devices for key in candidates.keys() - closed}
    choice = precision.choose(mode, offers, variants, costs, floor)
    if mode != FULL:
        options.say(choice.reason)
    if before is not None:
        choice, costs = choice.after(before.choice), {**before.costs.by_variant, **costs}
    return Lineup(precision.apply_choice(board, choice), LineCosts(costs, choice), choice)


def _known(costs: Costs, device: str, expert: str, variant: str) -> Cost:
    try:
        return costs[device, expert, variant]
    except KeyError:
        raise ConfigError(f"no cost is known for expert '{expert}' in {variant} on device '{device}'") from None
