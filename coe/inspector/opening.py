"""A line before any of its threads: its parts are read, measured, and checked to fit; and what other boards change.

Law: whatever is wrong with new boards raises, and the line goes on with the boards that it has.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coe.board import parts_list, rules
from coe.board.graph import follows
from coe.board.rules import Rules
from coe.board.union import union
from coe.config import counted
from coe.core import FULL, Expert, again_id
from coe.errors import ConfigError
from coe.inspector import line_devices, line_references, precision, weights_used
from coe.inspector.asked_boards import AskedBoard
from coe.inspector.line_boards import LineBoard, Register
from coe.inspector.line_devices import choose_threads, decoding
from coe.inspector.line_options import LineOptions
from coe.inspector.measuring import file_bytes, measure
from coe.inspector.precision import LineCosts
from coe.inspector.profile import Profile
from coe.inspector.settings import Settings, memories, plan_pools, settle, with_workspaces
from coe.inspector.weights_used import reference_digests
from coe.results.metrics import Watcher
from coe.runtime.copy_lane import Disk
from coe.runtime.device import Device
from coe.runtime.engine import Engine
from coe.runtime.line_engine import LineEngine
from coe.runtime.reading import weights
from coe.runtime.trial import identity
from coe.scheduler.controller import Controller
from coe.scheduler.events import RulesChanged
from coe.scheduler.plan import Plan
from coe.store import runnable_kinds
from coe.store.runnable_kinds import RunnableKind, SessionKind
from coe.store.store_reader import Snapshot


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
    costs: LineCosts
    plan: Plan
    file_bytes: dict[str, int]
    fixed_bytes: Mapping[str, int]
    proved: set[Hashable] = field(default_factory=set)

    @property
    def budget_bytes(self) -> int:
        """The bytes that all devices may take for experts, batches and images under way."""
        sizes = [device.memory_bytes for device in self.devices.values()]
        return sum(self.settings.memory_bytes if size is None else size for size in sizes)

    def start(self) -> LineEngine[Any, Any]:
        """Start what the line runs on: the engine of this machine."""
        decider = (self.options.experiment.make_decider or Controller)(
            router=self.rules.router,
            graph=self.rules.graph,
            costs=self.costs.following(),
            plan=self.options.strategy.pooled(self.plan),
            strategy=self.options.strategy,
            max_wait_s=self.options.max_wait_s,
            parts={board.key: board.asked.parts for board in self.boards},
        )
        return self.engine(decider, self.options.watchers)

    def engine(self, decider: Controller, watchers: Sequence[Watcher]) -> Engine:
        """Start the engine of this machine with a controller."""
        return Engine(
            decider,
            self.devices,
            self.rules.experts,
            self.kinds,
            disk=Disk(self.file_bytes, self.options.disk_bandwidth),
            decoding=decoding(self.settings.memory_bytes, self.options.inbox_bytes),
            watchers=watchers,
            keep_trace=self.options.experiment.keep_trace,
        )


def _read_board(options: LineOptions, asked: AskedBoard) -> LineBoard:
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
    components = named.components
    first_bytes = {name: 3 * named.experts[each.root.expert].input_size ** 2 for name, each in components.items()}
    given = frozenset(name for name, component in components.items() if component.is_given)
    return LineBoard(asked, named, manifests, good_parts, digests, first_bytes, given, asked.mix)


def read_boards(options: LineOptions, asked: Sequence[AskedBoard]) -> list[LineBoard]:
    """Read boards; raises ConfigError, RulesError or StoreError, and ConfigError if two have one name."""
    read = [_read_board(options, board) for board in asked]
    for number, board in enumerate(read):
        if any(other.rules.board == board.rules.board for other in read[:number]):
            raise ConfigError(
                f"{board.rules.path.name} and another file are both board '{board.rules.board}'; give each its own "
                "`board:` name"
            )
    return read


def kinds_of(options: LineOptions, board: Rules) -> dict[str, RunnableKind]:
    """Return the kinds of a board's experts, by name; raises ConfigError."""
    names = sorted({expert.kind for expert in board.experts.values()})
    return {name: runnable_kinds.resolve(name, options.allow_kinds) for name in names}


def assemble_read(options: LineOptions, read: Sequence[LineBoard]) -> Assembly:
    """Make the devices for boards that were read, measure unknown costs, and divide the memory.

    Raises ConfigError or StoreError for options that cannot work.
    """
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
        gpu=line_devices.GpuSettings(
            settings.device_bytes, settings.host_bytes, options.search_kernels, settings.batch_bytes
        ),
        say=options.say,
    )
    costs = line_up(options, joined, register, devices, known, settings.profile)
    rules = precision.apply_choice(joined, costs.choice)
    rules = replace(rules, graph=rules.graph.using(settings.usage))
    experts = list(rules.experts.values())
    for id, device in devices.items():
        device.prepare(experts, settings.executors[id])
    memory = memories(devices, experts, settings.executors)
    plan = plan_pools(
        settings,
        memory,
        rules.experts,
        costs,
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
        rules,
        known,
        settings,
        store,
        devices,
        costs,
        plan,
        file_bytes(rules, register.manifests, whole=not all(device.holds_bodies for device in devices.values())),
        {id: each.fixed_bytes for id, each in memory.items()},
    )


def line_up(
    options: LineOptions,
    board: Rules,
    register: Register,
    devices: Mapping[str, Device],
    known: Mapping[str, RunnableKind],
    profile: Profile | None,
    before: LineCosts | None = None,
) -> LineCosts:
    """Choose the variants that a board's experts run in; measure their costs unless the experiment's costs hold them.

    Experts that the costs `before` know keep their variants and costs.
    """
    mode, floor, manifests = options.precision, options.experiment.label_floor, register.manifests
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
        earlier = before.by_variant if before else {}
        present = [replace(register.experts[id], variant=variant) for _, id, variant in earlier]
        samples = list(dict.fromkeys([*candidates.values(), *present]))
        costs = measure(samples, devices, manifests, known, options.say, options.disk_bandwidth, profile, earlier)
    closed = {key for key in candidates if key[1] == "int8" and any((name, *key) not in costs for name in devices)}
    variants = {id: FULL if (id, variant) in closed else variant for id, variant in variants.items()}
    costs = {(device, *key): costs[device, *key] for device in devices for key in candidates.keys() - closed}
    choice = precision.choose(mode, offers, variants, costs, floor)
    if mode != FULL:
        options.say(choice.reason)
    if before is not None:
        choice, costs = choice.after(before.choice), {**before.by_variant, **costs}
    return LineCosts(costs, choice)


# Other boards


@dataclass(frozen=True, slots=True)
class LineChange:
    """What a line goes on with: the `assembly` of its new boards, and its rules.

    `now` holds while images of boards that leave are under way, `then` after it. `experts` are all that `now` needs.
    """

    assembly: Assembly
    now: RulesChanged
    then: RulesChanged
    experts: dict[str, Expert]


def enrol_boards(assembly: Assembly, asked: Sequence[AskedBoard], kept: Sequence[LineBoard]) -> list[LineBoard]:
    """Read boards for a line that runs, and return them after the boards that are `kept` as they are.

    Raises ConfigError, RulesError or StoreError.
    """
    boards = [*kept, *(assembly.register.enrol(board, alone=False) for board in read_boards(assembly.options, asked))]
    if len({board.name for board in boards}) < len(boards):
        raise ConfigError(f"keep={[board.name for board in kept]}: a board that is kept is not read again")
    return boards


def prepare_change(assembly: Assembly, boards: Sequence[LineBoard], ending: Sequence[LineBoard]) -> LineChange:
    """Prepare a line for other boards while boards that leave are `ending`; the devices take their experts.

    An architecture of which the line knows no cost is measured, beside what runs. Raises ConfigError, RulesError or
    StoreError: for weights that are damaged, and for experts for which the line has no memory.
    """
    current = union([board.member for board in boards])
    joined = union([board.member for board in (*boards, *ending)])
    options, register, settings = assembly.options, assembly.register, assembly.settings
    assembly.store.take(register.manifests, register.places)
    assembly.kinds.update(kinds_of(options, joined))
    costs = line_up(options, joined, register, assembly.devices, assembly.kinds, settings.profile, assembly.costs)
    both, rules = precision.apply_choice(joined, costs.choice), precision.apply_choice(current, costs.choice)
    # Experts of boards that leave, and are under way yet, were proved when they came.
    leaving = {expert.id for board in ending for expert in board.experts.values()}
    known = assembly.rules.experts.keys() | leaving | {*map(again_id, leaving)}
    newcomers = [expert for id, expert in both.experts.items() if id not in known]
    _prove(assembly, newcomers)
    assembly = replace(_with_fixed(assembly, list(both.experts.values())), costs=costs)
    for id, device in assembly.devices.items():
        device.admit(newcomers, settings.executors[id])
    assembly.file_bytes.update(file_bytes(both, register.manifests))
    after = replace(assembly, boards=tuple(boards), rules=rules, plan=_plan(assembly, rules))
    now, then = _event(assembly, both, [*boards, *ending]), _event(assembly, rules, boards)
    return LineChange(after, now, then, dict(both.experts))


def _with_fixed(assembly: Assembly, experts: Sequence[Expert]) -> Assembly:
    """Return the assembly with pools that leave what the experts of other boards hold for good, such as their bodies.

    What was held before stays held.
    """
    executors, before = assembly.settings.executors, assembly.fixed_bytes
    memory = memories(assembly.devices, experts, executors)
    fixed = {id: max(each.fixed_bytes, before[id]) for id, each in memory.items()}
    pools = tuple(
        replace(pool, capacity_bytes=pool.capacity_bytes - -(-(fixed[id] - before[id]) // executors[id]))
        for pool in assembly.plan.pools
        for id in [pool.device]
    )
    return replace(assembly, fixed_bytes=fixed, plan=replace(assembly.plan, pools=pools))


def _prove(assembly: Assembly, experts: Sequence[Expert]) -> None:
    """Read the weights of experts from end to end; raises StoreError for weights that are damaged."""
    # A file that was read before, and was not changed since, is not read again.
    files = {(file := weights(assembly.store, expert)).path: file for expert in experts}
    unread = {path: file for path, file in files.items() if identity(path) not in assembly.proved}
    if unread:
        assembly.options.say(f"reading the weights of {counted(len(unread), 'expert')}, to check them")
    for path, file in unread.items():
        seen = identity(path)
        variant = next((variant for variant in file.manifest.variants if variant == file.expert.variant), None)
        if variant is None:
            assembly.store.check_weights(file.expert.weights)
        else:
            assembly.store.check_variant(file.manifest, variant)
        if seen is not None:
            assembly.proved.add(seen)


def _plan(assembly: Assembly, rules: Rules) -> Plan:
    settings, plan = assembly.settings, assembly.plan
    wanted = settings.workspace_bytes
    if settings.loaded is not None:  # the user has said what experts may take
        wanted = {pool.device: pool.workspace_bytes for pool in plan.pools}
    return with_workspaces(plan, rules.experts, assembly.costs, wanted)


def _event(assembly: Assembly, rules: Rules, boards: Sequence[LineBoard]) -> RulesChanged:
    parts = {board.key: board.asked.parts for board in boards}
    followers = follows(rules.components.values(), rules.router.escalations)
    return RulesChanged(rules.router, rules.graph, assembly.costs, _plan(assembly, rules), parts, followers)
