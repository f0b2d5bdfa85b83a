"""Dividing a box's memories: host memory among the devices that share it, device memories, and room for copies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from coe import config
from coe.core import Expert
from coe.inspector.settings import Settings
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import CacheSpec, Plan, inbox_bytes, plan


class DeviceBudget(Protocol):
    """The fields of a device that the division needs; see `coe.runtime.device.Device`."""

    @property
    def memory_bytes(self) -> int | None: ...  # noqa: D102
    @property
    def host_bytes(self) -> int: ...  # noqa: D102
    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int: ...  # noqa: D102


def fixed_bytes(devices: Mapping[str, DeviceBudget], experts: Collection[Expert], executors: Mapping[str, int]) -> int:
    """Return the bytes that the executors of all devices hold beside the experts and their activations."""
    return sum(device.fixed_bytes(experts, executors[id]) for id, device in devices.items())


def experts_bytes(settings: Settings, devices: Mapping[str, DeviceBudget]) -> int:
    """Return how many bytes hold experts, all pools together: those not set aside for activations."""
    device_bytes = sum(device.memory_bytes or 0 for device in devices.values())
    sharers = {id: count for id, count in settings.executors.items() if devices[id].memory_bytes is None}
    if not sharers:
        return device_bytes
    pools_bytes = settings.memory_bytes - inbox_bytes(settings.memory_bytes)
    usual = int(pools_bytes // sum(sharers.values()) * config.WORKSPACE_SHARE)
    set_aside = sum(count * settings.workspace_bytes.get(device, usual) for device, count in sharers.items())
    return device_bytes + pools_bytes - set_aside


def planned(
    settings: Settings,
    devices: Mapping[str, DeviceBudget],
    experts: Mapping[str, Expert],
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
            fixed_bytes=fixed_bytes({id: devices[id] for id in executors}, experts.values(), executors),
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
