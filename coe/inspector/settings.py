"""The settings of a line: the user's options, else this machine's profile, else defaults; and its memory, divided."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe import config
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers import system
from coe.inspector import profile
from coe.inspector.line_options import AUTO, LineOptions
from coe.inspector.memory_split import plan
from coe.inspector.profile import Fingerprint, Profile
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import CacheSpec, Plan

if TYPE_CHECKING:  # the device needs torch
    from coe.runtime.device import Device


@dataclass(frozen=True, slots=True)
class Settings:
    """Executors, their threads and the workspace of their pools, by device, and the host memory that they share.

    A device without threads gets an equal part of the cores that are free. A device without a workspace gets what
    `coe.inspector.memory_split` reserves, or what the memory score `loaded` leaves. Each GPU has `device_bytes` of
    device memory, and all share `host_bytes` of host memory for copies; None is a default that depends on the free
    memory.
    """

    memory_bytes: int
    executors: Mapping[str, int]
    threads: Mapping[str, int] = field(default_factory=dict)
    workspace_bytes: Mapping[str, int] = field(default_factory=dict)
    profile: Profile | None = None
    loaded: float | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None


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
            "device memory and host memory are for executors of a GPU, and none were asked for; "
            "give --executors cuda=1 too, or leave --device-memory and --host-memory out"
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
            f"warning: memory is {format_bytes(memory_bytes)}, and this process may use {format_bytes(most)} at most: "
            "the system may end it; give less"
        )
    if profiled is None:
        return settings
    if any(map(config.is_gpu, numbers)):
        settings = replace(
            settings,
            device_bytes=profiled.device_bytes if device_bytes is None else device_bytes,
            host_bytes=profiled.host_bytes if host_bytes is None else host_bytes,
        )
    if options.strategy.single:
        return settings
    if dict(numbers) == dict(profiled.chosen.executors) and options.threads is None:
        fits = memory_bytes == profiled.memory_bytes and options.experiment.loaded is None
        spaces = profiled.chosen.workspace_bytes if fits else {}
        settings = replace(settings, threads=profiled.chosen.threads, workspace_bytes=spaces)
    numbers_text = ",".join(f"{device}={number}" for device, number in numbers.items())
    made = machine.made[:10] if machine else ""
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
                f"the profile at {path} does not fit this machine any more ({'; '.join(changed)}); "
                "run coe-profile again"
            )
    except ConfigError as error:
        if source != AUTO:
            raise
        say(f"warning: {error}; going on without it")
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
