"""The settings of a line: the user's options, else this machine's profile, else defaults; and its memory, divided."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe import config
from coe.board.rules import Rules
from coe.config import counted, format_bytes
from coe.core import Expert
from coe.errors import BoardsClash, ConfigError
from coe.helpers import system
from coe.inspector import profile
from coe.inspector.line_options import AUTO, LineOptions
from coe.inspector.profile import Fingerprint, Profile
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec, executor_id

if TYPE_CHECKING:
    from coe.runtime.device import Device


@dataclass(frozen=True, slots=True)
class Settings:
    """Executors, their threads and the workspace of their pools, by device, and the host memory that they share.

    A device without threads gets an equal part of the cores that are free. A device without a workspace gets what
    `workspace_bytes` reserves, or what the memory score `loaded` leaves. Each GPU has `device_bytes` of
    device memory, of which the graphs of an executor may hold `batch_bytes`, and all share `host_bytes` of host memory
    for copies; None is a default that depends on the free memory. `usage` is how likely an image needs an expert, for
    those of which the rules do not say it rightly.
    """

    memory_bytes: int
    executors: Mapping[str, int]
    threads: Mapping[str, int] = field(default_factory=dict)
    workspace_bytes: Mapping[str, int] = field(default_factory=dict)
    profile: Profile | None = None
    loaded: float | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    batch_bytes: int | None = None
    usage: Mapping[str, float] = field(default_factory=dict)


def settle(board: Rules, options: LineOptions) -> Settings:
    """Combine the user's options with the profile; a `single` strategy keeps one executor of the first device.

    The user's options always count. If they differ from the profile's memory, executors or threads, or give `loaded`,
    the profile's workspaces are not used, because they were chosen for other settings.
    Raises ConfigError for a named profile that cannot be used, or for memories of a GPU without executors. A profile at
    the default place that cannot be used is skipped with a warning.
    """
    say, device_bytes, host_bytes = options.say, options.device_memory, options.host_memory
    machine = _find(options.profile, say)
    profiled = machine.boards.get(board.board) if machine else None
    if profiled and profiled.digest != board.digest:
        say(f"{board.path.name} has changed since it was profiled; run coe-profile --board {board.board} again")
        profiled = None
    numbers: Mapping[str, int] = config.parse_executors(options.executors or config.EXECUTORS)
    if profiled and options.executors is None:
        numbers = profiled.chosen.executors
    if (device_bytes, host_bytes) != (None, None) and not any(map(config.is_gpu, numbers)):
        raise ConfigError(
            "device memory and host memory are for GPU executors, but there are none; give "
            "--executors cuda=1 too, or leave --device-memory and --host-memory out"
        )
    if options.strategy.single:
        numbers = {next(iter(numbers)): 1}
    default_bytes = profiled.memory_bytes if profiled else config.parse_bytes(config.MEMORY)
    memory_bytes = default_bytes if options.memory is None else options.memory
    settings = Settings(
        memory_bytes=memory_bytes,
        executors=numbers,
        threads={} if options.threads is None else dict.fromkeys(numbers, options.threads),
        profile=machine,
        loaded=options.experiment.loaded,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
    )
    if memory_bytes > (most := system.usable_memory()):
        say(
            f"warning: memory is {format_bytes(memory_bytes)}, but this process may use only {format_bytes(most)}: the "
            "system may kill it; give less"
        )
    if profiled is None:
        return settings
    if any(map(config.is_gpu, numbers)):
        settings = replace(
            settings,
            device_bytes=profiled.device_bytes if device_bytes is None else device_bytes,
            host_bytes=profiled.host_bytes if host_bytes is None else host_bytes,
        )
    usage = {row.expert: row.by_images for row in profiled.usage if row.differs and row.by_images is not None}
    settings = replace(settings, usage=usage)
    if options.strategy.single and profiled.strategy != options.strategy.name:
        return settings
    if dict(numbers) == dict(profiled.chosen.executors) and options.threads is None:
        fits = memory_bytes == profiled.memory_bytes and options.experiment.loaded is None
        spaces = dict(profiled.chosen.workspace_bytes) if fits else {}
        batch_bytes = spaces.pop("cuda", None)
        if settings.device_bytes != profiled.device_bytes:
            batch_bytes = None
        settings = replace(settings, threads=profiled.chosen.threads, workspace_bytes=spaces, batch_bytes=batch_bytes)
    numbers_text = ",".join(f"{device}={number}" for device, number in numbers.items())
    made = machine.made[:10] if machine else ""
    made += "" if profiled.strategy == options.strategy.name else f", made for strategy {profiled.strategy}"
    say(f"using this machine's profile of {made}: {numbers_text}, {format_bytes(memory_bytes)} of memory")
    return settings


def _find(source: Profile | Path | str | None, say: Callable[[str], None]) -> Profile | None:
    if source is None or isinstance(source, Profile):
        return source
    try:
        path = profile.place() if source == AUTO else Path(source)
    except ConfigError:  # the user has no folder for a profile
        return None
    if source == AUTO and not os.path.exists(path):  # `Path.exists` raises for a folder that may not be read
        return None
    try:
        machine = profile.load(path)
        if changed := machine.machine.changes(Fingerprint.here()):
            raise ConfigError(
                f"the profile at {path} no longer fits this machine ({'; '.join(changed)}); run coe-profile again"
            )
    except ConfigError as error:
        if source != AUTO:
            raise
        say(f"warning: {error}; continuing without it")
        return None
    return machine


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device, in bytes: its own (None: it uses the host's), and the host's for copies of experts.

    `fixed_bytes` are held for good beside the experts and their activations.
    """

    memory_bytes: int | None
    host_bytes: int
    fixed_bytes: int


def memories(
    devices: Mapping[str, Device], experts: Collection[Expert], executors: Mapping[str, int]
) -> dict[str, DeviceMemory]:
    """Return the memory of each device, with so many executors that run these experts."""
    return {
        id: DeviceMemory(device.memory_bytes, device.host_bytes, device.fixed_bytes(experts, executors[id]))
        for id, device in devices.items()
    }


def plan_pools(
    settings: Settings,
    devices: Mapping[str, DeviceMemory],
    experts: Collection[str],
    costs: CostTable,
    *,
    with_images: bool,
    demotes: bool,
) -> Plan:
    """Split each device's memory over its executors, and host memory over the executors that share it.

    Host memory also keeps copies for devices with their own memory; with `demotes`, above all of experts that leave
    these. Raises ConfigError, naming the least budget, if an expert with one image does not fit.
    """
    separate = {id: device.memory_bytes for id, device in devices.items() if device.memory_bytes is not None}
    groups = [({id: settings.executors[id]}, memory, False) for id, memory in separate.items()]
    if sharers := {id: count for id, count in settings.executors.items() if id not in separate}:
        groups.append((sharers, settings.memory_bytes, with_images))
    parts = [
        plan(
            executors,
            memory,
            experts,
            costs,
            settings.workspace_bytes,
            with_images=images,
            fixed_bytes=sum(devices[id].fixed_bytes for id in executors),
            loaded=settings.loaded,
        )
        for executors, memory, images in groups
    ]
    copies = sum(devices[id].host_bytes for id in separate)
    return Plan(
        tuple(pool for part in parts for pool in part.pools),
        tuple(executor for part in parts for executor in part.executors),
        CacheSpec(copies, frozenset(separate), demotes) if copies else None,
    )


def plan(
    executors: Mapping[str, int],
    memory_bytes: int,
    experts: Iterable[str],
    costs: CostTable,
    workspaces: Mapping[str, int] | None = None,
    *,
    with_images: bool = False,
    fixed_bytes: int = 0,
    loaded: float | None = None,
) -> Plan:
    """Give each executor a separate pool with an equal part of the budget, as in the paper (section 4.1).

    With `with_images` a part of the budget is kept for images under way (see `inbox_bytes`). `fixed_bytes` are what
    devices need besides experts and batches. `workspaces` gives the activations' part of each pool by device; without
    it `workspace_bytes` works it out. `loaded` gives it in another way: as the memory score (see `memory_scores`) of
    the experts that all pools together hold. Raises ConfigError, naming the expert and the least budget, if an expert
    with one image does not fit.
    """
    experts = list(experts)
    count = sum(executors.values())
    images_bytes = inbox_bytes(memory_bytes) if with_images else 0
    capacity = (memory_bytes - images_bytes - fixed_bytes) // count
    pools, specs = [], []
    for device, number in executors.items():
        wanted = (workspaces or {}).get(device)
        if loaded is not None:
            sizes = {expert: costs(device, expert).weights_bytes for expert in experts}
            wanted = max(0, capacity - score_bytes(loaded / count, sizes))
        try:
            workspace = workspace_bytes(device, capacity, experts, costs, wanted)
        except TooSmall as small:
            # Rounded up, so that exactly this budget is enough.
            least = (small.least_bytes * count + fixed_bytes) / (1 - (config.INBOX_SHARE if with_images else 0))
            enough = f"{math.ceil(least / (1 << 20))}MiB"
            images = f" after {format_bytes(images_bytes)} for images under way" if images_bytes else ""
            advice = f"give at least {enough}" + (", or fewer executors" if count > 1 else "")
            raise ConfigError(
                f"a memory budget of {format_bytes(memory_bytes)} for {counted(count, 'executor')} {small}, because "
                f"each has {format_bytes(max(0, capacity))} of it{images}; {advice}"
            ) from None
        if loaded is not None and workspace != wanted:
            single = max(costs(device, expert).batch_bytes(1) for expert in experts)
            an_expert = score_bytes(1, sizes) / count
            raise ConfigError(
                f"{loaded:g} loaded experts are not possible with {format_bytes(memory_bytes)} for "
                f"{counted(count, 'executor')}: each holds the largest expert and the activations of one image; "
                f"give {math.ceil(10 * max(sizes.values()) / an_expert) / 10:g} to "
                f"{math.floor(10 * (capacity - single) / an_expert) / 10:g}"
            )
        for index in range(number):
            id = executor_id(device, index)
            pools.append(PoolSpec(id, device, capacity, workspace))
            specs.append(ExecutorSpec(id, device, id))
    return Plan(tuple(pools), tuple(specs))


def with_workspaces(
    plan: Plan, experts: Iterable[str], costs: CostTable, workspaces: Mapping[str, int] | None = None
) -> Plan:
    """Return a plan whose pools leave the workspace that other experts need; nothing else changes.

    `workspaces` gives it by device, as in `plan`. Raises BoardsClash if an expert with one image does not fit.
    """
    experts, pools = list(experts), []
    for pool in plan.pools:
        wanted = (workspaces or {}).get(pool.device)
        try:
            workspace = workspace_bytes(pool.device, pool.capacity_bytes, experts, costs, wanted)
        except TooSmall as small:
            raise BoardsClash(
                f"the memory of this line {small} in its pool '{pool.id}' of {format_bytes(pool.capacity_bytes)}; "
                "open a line with more memory, or with fewer executors"
            ) from None
        pools.append(replace(pool, workspace_bytes=workspace))
    return replace(plan, pools=tuple(pools))


def inbox_bytes(memory_bytes: int) -> int:
    """Return the part of a memory budget that is kept for images under way; the pools get the rest."""
    return min(config.INBOX_BYTES, int(memory_bytes * config.INBOX_SHARE))


def waiting_bytes(memory_bytes: int, given_bytes: int | None = None) -> int:
    """Return the bytes that images may take that wait, with their first inputs: half of the images' part of a budget.

    A quarter each is for those being decoded and for inputs made ahead for later experts (`line_devices.decoding`).
    `given_bytes` is the size of each of the three instead. Decoding frees its memory before the image waits, so no part
    needs another part's bytes.
    """
    return 2 * (inbox_bytes(memory_bytes) // 4) if given_bytes is None else given_bytes


class TooSmall(ConfigError):
    """A pool is too small for `least_bytes`: its largest expert with the activations of one image."""

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


def workspace_bytes(
    device: str, capacity_bytes: int, experts: Collection[str], costs: CostTable, wanted_bytes: int | None = None
) -> int:
    """Return the part of a pool that is set aside for activations.

    On processors of limited computing power the largest useful batch is small, so its activations are set aside and
    the rest holds experts (paper section 4.4). The part is at most `config.WORKSPACE_SHARE`, unless `wanted_bytes` is
    given or one image needs more. Raises TooSmall if the largest expert with one image does not fit.
    """
    device_costs = [costs(device, expert) for expert in experts]
    single = max(cost.batch_bytes(1) for cost in device_costs)
    useful = max(cost.batch_bytes(cost.useful_batch) for cost in device_costs)
    largest = max(experts, key=lambda expert: costs(device, expert).weights_bytes)
    weights = costs(device, largest).weights_bytes
    if weights + single > capacity_bytes:
        raise TooSmall(
            f"does not hold expert '{largest}' ({format_bytes(weights)}) and the activations of one image "
            f"({format_bytes(single)})",
            weights + single,
        )
    wanted = min(useful, int(capacity_bytes * config.WORKSPACE_SHARE)) if wanted_bytes is None else wanted_bytes
    return min(max(single, wanted), capacity_bytes - weights)


def memory_scores(bytes_by_expert: Mapping[str, int]) -> dict[str, float]:
    """Return the footprint of each expert as its memory score (paper section 4.5): 1 is the mean of the board.

    The paper does not say by which value it normalises footprints. With the mean, a budget given as a score is a number
    of experts, which the paper's windows count; with the smallest footprint it would not be.
    """
    mean = _mean_bytes(bytes_by_expert)
    return {expert: size / mean for expert, size in bytes_by_expert.items()}


def score_bytes(score: float, bytes_by_expert: Mapping[str, int]) -> int:
    """Return the bytes that a memory score stands for, the inverse of `memory_scores`."""
    return round(score * _mean_bytes(bytes_by_expert))


def _mean_bytes(bytes_by_expert: Mapping[str, int]) -> float:
    return sum(bytes_by_expert.values()) / len(bytes_by_expert)
