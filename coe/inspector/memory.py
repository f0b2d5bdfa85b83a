"""How the memories of a box are divided: the host's among those that share it, each device's own, and copies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from coe import config
from coe.core import Expert
from coe.inspector.settings import Settings
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import CacheSpec, Plan, inbox_bytes, plan


class DeviceBudget(Protocol):
    """What the division asks of a device; see `coe.runtime.device.Device`."""

    @property
    def memory_bytes(self) -> int | None: ...  # noqa: D102
    @property
    def host_bytes(self) -> int: ...  # noqa: D102
    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int: ...  # noqa: D102


def fixed_bytes(devices: Mapping[str, DeviceBudget], experts: Collection[Expert], executors: Mapping[str, int]) -> int:
    """Return what the executors of all devices hold beside such experts and their activations."""
    return sum(device.fixed_bytes(experts, executors[id]) for id, device in devices.items())


def experts_bytes(settings: Settings, devices: Mapping[str, DeviceBudget]) -> int:
    """Return how much of the memory holds experts, all pools together: what is not set aside for activations."""
    own_bytes = sum(device.memory_bytes or 0 for device in devices.values())
    sharers = {id: count for id, count in settings.executors.items() if devices[id].memory_bytes is None}
    if not sharers:
        return own_bytes
    pools_bytes = settings.memory_bytes - inbox_bytes(settings.memory_bytes)
    usual = int(pools_bytes // sum(sharers.values()) * config.WORKSPACE_SHARE)
    set_aside = sum(count * settings.workspace_bytes.get(device, usual) for device, count in sharers.items())
    return own_bytes + pools_bytes - set_aside


def planned(
    settings: Settings,
    devices: Mapping[str, DeviceBudget],
    experts: Mapping[str, Expert],
    costs: CostTable,
    *,
    with_images: bool,
    demotes: bool,
) -> Plan:
    """Split the memories over executors: each device's own, and the host's over those that share it.

    Copies for the former are kept in host memory; with `demotes`, above all of what leaves them. Raises ConfigError,
    naming the least budget, if an expert with one image does not fit.
    """
    own = {id: device.memory_bytes for id, device in devices.items() if device.memory_bytes is not None}
    groups = [({id: settings.executors[id]}, memory, False) for id, memory in own.items()]
    if sharers := {id: count for id, count in settings.executors.items() if id not in own}:
        groups.append((sharers, settings.memory_bytes, with_images))
    parts = [
        plan(
            executors,
            memory,
            experts,
            costs,
            settings.workspace_bytes,
            with_images=images,
            fixed_bytes=fixed_bytes({id: devices[id] for id in executors}, experts.values(), executors),
            loaded=settings.loaded,
        )
        for executors, memory, images in groups
    ]
    copies = sum(devices[id].host_bytes for id in own)
    return Plan(
        tuple(pool for part in parts for pool in part.pools),
        tuple(executor for part in parts for executor in part.executors),
        CacheSpec(copies, frozenset(own), demotes) if copies else None,
    )
