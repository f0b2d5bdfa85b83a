"""Other boards for a line that runs: all is read, proved and found to fit before anything changes.

Law: whatever is wrong with the new boards raises, and the line goes on with the boards that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coe.board.expected_use import follows
from coe.board.rules import Rules
from coe.board.union import union
from coe.core import Expert
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.asked_boards import AskedBoard
from coe.inspector.line_boards import LineBoard
from coe.inspector.measuring import file_bytes
from coe.inspector.memory_split import with_workspaces
from coe.inspector.opening import Assembly, Lineup, kinds_of, line_up, read_boards
from coe.inspector.settings import fixed_bytes
from coe.runtime.reading import weights
from coe.runtime.trial import identity
from coe.scheduler.events import RulesChanged
from coe.scheduler.plan import Plan


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
    lineup = line_up(options, joined, register.manifests, assembly.devices, assembly.kinds, settings, assembly.lineup)
    present = assembly.rules.experts
    newcomers = [expert for id, expert in lineup.board.experts.items() if id not in present]
    _prove(assembly, newcomers)
    assembly = _with_fixed(assembly, lineup)
    for id, device in assembly.devices.items():
        device.admit(newcomers, settings.executors[id])
    rules = precision.apply_choice(current, lineup.choice)
    assembly.file_bytes.update(file_bytes(lineup.board, register.manifests))
    after = replace(assembly, boards=tuple(boards), rules=rules, lineup=lineup, plan=_plan(assembly, rules, lineup))
    return LineChange(
        after,
        _event(assembly, lineup.board, lineup, [*boards, *ending]),
        _event(assembly, rules, lineup, boards),
        dict(lineup.board.experts),
    )


def _with_fixed(assembly: Assembly, lineup: Lineup) -> Assembly:
    """Return the assembly with pools that leave what the experts of other boards hold for good, such as their bodies.

    What was held before stays held.
    """
    executors, before = assembly.settings.executors, assembly.fixed_bytes
    asked = fixed_bytes(assembly.devices, list(lineup.board.experts.values()), executors)
    fixed = {id: max(size, before[id]) for id, size in asked.items()}
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
        assembly.options.say(f"reading the weights of {len(unread)} experts, to prove them")
    for path, file in unread.items():
        seen = identity(path)
        variant = next((variant for variant in file.manifest.variants if variant == file.expert.variant), None)
        if variant is None:
            assembly.store.check_weights(file.expert.weights)
        else:
            assembly.store.check_variant(file.manifest, variant)
        if seen is not None:
            assembly.proved.add(seen)


def _plan(assembly: Assembly, rules: Rules, lineup: Lineup) -> Plan:
    settings, plan = assembly.settings, assembly.plan
    wanted = settings.workspace_bytes
    if settings.loaded is not None:  # the user has said what experts may take
        wanted = {pool.device: pool.workspace_bytes for pool in plan.pools}
    return with_workspaces(plan, rules.experts, lineup.costs, wanted)


def _event(assembly: Assembly, rules: Rules, lineup: Lineup, boards: Sequence[LineBoard]) -> RulesChanged:
    parts = {board.key: board.read.parts for board in boards}
    followers = follows(rules.components.values(), rules.router.escalations)
    return RulesChanged(rules.router, rules.graph, lineup.costs, _plan(assembly, rules, lineup), parts, followers)
