"""Which executors and pools there are, and how a memory budget is split over them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from coe import config
from coe.config import format_bytes
from coe.costs import CostTable
from coe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A budget of bytes on a device. Experts leave `workspace_bytes` of it to activations at all times."""

    id: str
    device: str
    capacity_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """One worker of a device; it runs the experts of one pool."""

    id: str
    device: str
    pool: str


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Host memory that keeps copies of what was read from disk for the devices behind it."""

    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The pools and the executors of a run, and the host cache if there is one."""

    pools: tuple[PoolSpec, ...]
    executors: tuple[ExecutorSpec, ...]
    cache: CacheSpec | None = None


def plan(
    executors: Mapping[str, int],
    memory_bytes: int,
    experts: Iterable[str],
    costs: CostTable,
    workspaces: Mapping[str, int] | None = None,
) -> Plan:
    """Give each executor a pool of its own with an equal part of the budget, as in the paper (section 4.1).

    `workspaces` says what each pool of a device leaves to activations, else `workspace_bytes` works it out. Raises
    ConfigError, naming the expert and the least budget, if one expert with one image does not fit.
    """
    experts = list(experts)
    count = sum(executors.values())
    capacity = memory_bytes // count
    pools, specs = [], []
    for device, number in executors.items():
        try:
            workspace = workspace_bytes(device, capacity, experts, costs, (workspaces or {}).get(device))
        except TooSmall as small:
            # Rounded up, so that the advice is enough when it is followed to the letter.
            enough = f"{-(-small.least_bytes * count // (1 << 20))}MiB"
            advice = f"give at least {enough}" + (", or fewer executors" if count > 1 else "")
            raise ConfigError(
                f"a memory budget of {format_bytes(memory_bytes)} for {count} executor(s) {small}; {advice}"
            ) from None
        for index in range(number):
            pools.append(PoolSpec(f"{device}{index}", device, capacity, workspace))
            specs.append(ExecutorSpec(f"{device}{index}", device, f"{device}{index}"))
    return Plan(tuple(pools), tuple(specs))


def joined(plan: Plan) -> Plan:
    """Return a plan in which the executors of a device have their pools together as one, for late binding."""
    pools = {
        device: PoolSpec(device, device, sum(p.capacity_bytes for p in own), sum(p.workspace_bytes for p in own))
        for device in dict.fromkeys(pool.device for pool in plan.pools)
        if (own := [pool for pool in plan.pools if pool.device == device])
    }
    executors = tuple(replace(executor, pool=executor.device) for executor in plan.executors)
    return Plan(tuple(pools.values()), executors, plan.cache)


class TooSmall(ConfigError):
    """A pool that does not hold `least_bytes`: its largest expert with the activations of one image."""

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


def workspace_bytes(
    device: str, capacity_bytes: int, experts: Collection[str], costs: CostTable, wanted_bytes: int | None = None
) -> int:
    """Return the part of a pool that is set aside for activations.

    On processors of limited computing power the largest useful batch is small, so its activations are set aside and
    the rest holds experts (paper section 4.4), but never more than `config.WORKSPACE_SHARE` unless `wanted_bytes` says
    so, or one image needs it. Raises TooSmall if the largest expert with one image does not fit.
    """
    own = [costs(device, expert) for expert in experts]
    single = max(cost.batch_bytes(1) for cost in own)
    useful = max(cost.batch_bytes(cost.max_batch) for cost in own)
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
