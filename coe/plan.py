"""Which executors and pools there are, and how a memory budget is split over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
class Plan:
    """The pools and the executors of a run."""

    pools: tuple[PoolSpec, ...]
    executors: tuple[ExecutorSpec, ...]


def plan(executors: Mapping[str, int], memory_bytes: int, experts: Iterable[str], costs: CostTable) -> Plan:
    """Give each executor a pool of its own with an equal part of the budget, as in the paper (section 4.1).

    On processors of limited computing power the largest useful batch is small, so its activations are set aside and
    the rest holds experts (section 4.4), but never more than `config.WORKSPACE_SHARE` unless one image needs it.
    Raises ConfigError, naming the expert and the least budget, if one expert with one image does not fit.
    """
    experts = list(experts)
    count = sum(executors.values())
    capacity = memory_bytes // count
    pools, specs = [], []
    for device, number in executors.items():
        useful = max(costs(device, e).batch_bytes(costs(device, e).max_batch) for e in experts)
        single = max(costs(device, e).batch_bytes(1) for e in experts)
        workspace = max(single, min(useful, int(capacity * config.WORKSPACE_SHARE)))
        largest = max(experts, key=lambda e: costs(device, e).weights_bytes)
        least = costs(device, largest).weights_bytes + single
        if least > capacity:
            # Rounded up, so that the advice is enough when it is followed to the letter.
            enough = f"{-(-least * count // (1 << 20))}MiB"
            advice = f"give at least {enough}" + (", or fewer executors" if count > 1 else "")
            raise ConfigError(
                f"a memory budget of {format_bytes(memory_bytes)} for {count} executor(s) does not hold expert "
                f"'{largest}' ({format_bytes(costs(device, largest).weights_bytes)}) and the activations of one image "
                f"({format_bytes(single)}); {advice}"
            )
        workspace = min(workspace, capacity - costs(device, largest).weights_bytes)
        for index in range(number):
            pools.append(PoolSpec(f"{device}{index}", device, capacity, workspace))
            specs.append(ExecutorSpec(f"{device}{index}", device, f"{device}{index}"))
    return Plan(tuple(pools), tuple(specs))
