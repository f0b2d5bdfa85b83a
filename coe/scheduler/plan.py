"""The executors and pools of a run, and the host cache if there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A budget of bytes on a device. Experts always leave `workspace_bytes` of it to activations."""

    id: str
    device: str
    capacity_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """One worker of a device; it runs the experts of one pool, and has at most `depth` batches under way."""

    id: str
    device: str
    pool: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Host memory that keeps copies of experts for `devices` (None: for all devices).

    It keeps experts that were read from disk or, if it `demotes`, above all experts that leave a device.
    """

    capacity_bytes: int
    devices: frozenset[str] | None = None
    demotes: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The pools and the executors of a run, and the host cache if there is one."""

    pools: tuple[PoolSpec, ...]
    executors: tuple[ExecutorSpec, ...]
    cache: CacheSpec | None = None


def executor_id(device: str, index: int) -> str:
    """Return the name of an executor and of its pool: "cpu0", or "cuda:1/0" on a device whose name has a number."""
    return f"{device}/{index}" if device[-1:].isdigit() else f"{device}{index}"


def joined(plan: Plan) -> Plan:
    """Return a plan in which all executors of a device share one pool, the sum of their pools, for late binding."""
    pools = {
        device: PoolSpec(device, device, sum(p.capacity_bytes for p in parts), sum(p.workspace_bytes for p in parts))
        for device in dict.fromkeys(pool.device for pool in plan.pools)
        if (parts := [pool for pool in plan.pools if pool.device == device])
    }
    executors = tuple(replace(executor, pool=executor.device) for executor in plan.executors)
    return Plan(tuple(pools.values()), executors, plan.cache)
