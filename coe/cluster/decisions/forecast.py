"""What a box reports to the head of its cluster: when each expert would be resident, and what a stage takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from coe.cluster.decisions.routing import StagePrice
from coe.core import added
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.events import Command, Event, Evict, Evicted, Load, LoadFailed
from coe.scheduler.plan import Plan

GOSSIP_S = 0.05
"""A box reports experts alone no more often than this, in seconds."""


def changed_experts(event: Event | None, commands: Iterable[Command]) -> list[str]:
    """Return the experts for which `comes_in_s` may have changed by a step of the box."""
    changed = [command.expert for command in commands if isinstance(command, (Load, Evict))]
    if isinstance(event, (Evicted, LoadFailed)):
        changed.append(event.expert)
    return changed


def comes_in_s(controller: Controller, experts: Iterable[str]) -> dict[str, float]:
    """Return the seconds in which each expert would be in some pool; 0 if it is there, or on its way.

    Experts that the box's rules do not name any more are left out.
    """
    return {expert: _comes_in_s(controller, expert) for expert in experts if expert in controller.graph.experts}


def _comes_in_s(controller: Controller, expert: str) -> float:
    pools = controller.pools.values()
    if any(expert in pool for pool in pools):
        return 0.0
    return min(controller.world.switch_s(pool, expert) for pool in pools)


def stage_prices(
    costs: CostTable, plan: Plan, experts: Iterable[str], speeds: Mapping[str, float] | None = None
) -> dict[str, StagePrice]:
    """Return the seconds that a stage of each expert costs a busy box, and those of a load of the expert from disk.

    Devices share the stages of a busy box, in full batches: their rates add up. `speeds` says how many times as fast
    as one executor those of a device are together; without it they do not slow each other.
    """
    executors = Counter(executor.device for executor in plan.executors)
    rates = {device: (speeds or {}).get(device, float(number)) for device, number in executors.items()}
    return {expert: _price(costs, rates, expert) for expert in experts}


def _price(costs: CostTable, rates: Mapping[str, float], expert: str) -> StagePrice:
    by_device = {device: costs(device, expert) for device in rates}
    a_second = added(
        rate / max(1e-9, by_device[device].batch_s(by_device[device].max_batch) / by_device[device].max_batch)
        for device, rate in rates.items()
    )
    return StagePrice(1 / a_second, min(cost.load_s for cost in by_device.values()))
