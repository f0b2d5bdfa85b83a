"""The bound that no order can beat: the fewest switches and the least time, if everything were known beforehand.

Each term assumes that only one resource limits the run. Each is a valid bound, so the largest is too. `docs/bound.md`
explains each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from coe.lab.bounds.belady import belady_switches
from coe.lab.bounds.walk import DeviceLimits, Floats, LeastWork, Walk
from coe.scheduler.cases import Cases
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan
from coe.sim.oracle import Oracle

if TYPE_CHECKING:
    from coe.lab.workloads.workload import Workload

CUTS = 64
"""At how many points in time the remaining work is summed up."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The fewest switches and the least seconds from time 0 to the last reply.

    `in_order_switches` is no bound: it is the fewest for stages in the order of their images (see `belady_switches`).
    `makespan_s` is the largest of the other times: `arrivals_s` is the end of the last image if no image waits for
    another, `disk_s` the time to read experts, `copy_s` the time to copy them to devices, `compute_s` the time of the
    batches.
    """

    switches: int
    in_order_switches: int
    makespan_s: float
    arrivals_s: float
    disk_s: float
    copy_s: float
    compute_s: float

    @property
    def limit(self) -> str:
        """The resource that limits the makespan most: arrivals, disk, copy or compute."""
        return max(("arrivals", "disk", "copy", "compute"), key=lambda name: float(getattr(self, f"{name}_s")))


def bound(
    workload: Workload,
    oracle: Oracle,
    costs: CostTable,
    plan: Plan,
    scaling: Mapping[str, Sequence[float]],
    resident: Collection[str],
    cached: Collection[str],
    boxes: int = 1,
) -> Bound:
    """Return the bound that no order of a workload's stages can beat on a plan.

    With several `boxes` the plan is that of each; the bound is that of a box with the memory, disks, lanes and
    executors of all together, to which any expert and any image comes at once.

    `resident` are the experts in some pool at time 0, `cached` the experts of which the host holds a copy then.
    `scaling` is by device (see `coe.sim.resources.Processor`). One pass over the arrivals; memory grows with the
    stages, by some 50 bytes each. Raises ConfigError if a cost is not known.
    """
    names = dict.fromkeys(executor.device for executor in plan.executors)
    devices = [DeviceLimits.of(name, plan, scaling.get(name, ()), boxes) for name in names]
    walk = Walk(Cases(workload.board.router), oracle, costs, devices, resident, cached)
    for arrival in workload.arrivals:
        walk.take(arrival.at_s, arrival.request)
    work = LeastWork(walk)
    tails_s = _tails_s(walk, work)
    times = [walk.last_s, _disk_s(walk, tails_s, boxes), _copy_s(walk, tails_s, boxes), _compute_s(walk, work)]
    switches = sum(used.switched for used in walk.used.values()) + _reloads(walk, _room(plan, boxes))
    return Bound(switches, _in_order(walk, costs, plan, resident, boxes), max(times), *times)


def _room(plan: Plan, boxes: int) -> int:
    return boxes * sum(pool.capacity_bytes - pool.workspace_bytes for pool in plan.pools)


def _in_order(walk: Walk, costs: CostTable, plan: Plan, resident: Collection[str], boxes: int) -> int:
    """Return the switches of Belady's choice, as if all pools were one."""
    devices = dict.fromkeys(pool.device for pool in plan.pools)
    sizes = {expert: min(costs(device, expert).weights_bytes for device in devices) for expert in resident}
    sizes |= {expert: used.weights_bytes for expert, used in walk.used.items()}
    names = list(walk.used)
    return belady_switches([names[number] for number in walk.numbers], sizes, _room(plan, boxes), resident)


def _reloads(walk: Walk, room: int) -> int:
    """Return how many resident experts must leave and come back, because absent experts that run before them need room.

    When the first absent expert is loaded, none of the residents that are held up has done its last stage.
    """
    absent = [used.weights_bytes for used in walk.used.values() if used.switched]
    held_up = sorted((walk.used[expert].weights_bytes for expert in walk.held_up), reverse=True)
    needed = sum(held_up) + min(absent, default=0)
    # Count the steps that leave too little room: none leaves, the largest leaves, the two largest leave, ...
    gone = accumulate(held_up[:-1], initial=0) if held_up else ()
    return sum(needed - left > room for left in gone)


def _tails_s(walk: Walk, work: LeastWork) -> Floats:
    """Return the least time after the copy of each expert, by its number: one image of it, and all its stages."""
    single_s = np.array([min(times.run_s for times in used.on_devices) for used in walk.used.values()])
    stages = np.bincount(walk.numbers, minlength=len(walk.used)).astype(np.float64)
    work_s = work.of(stages)
    with np.errstate(divide="ignore"):
        together_s = work_s[0] if len(work_s) == 1 else 1 / (1 / work_s).sum(axis=0)
    tails_s: Floats = np.maximum(single_s, together_s)
    return tails_s


def _disk_s(walk: Walk, tails_s: Floats, disks: int) -> float:
    """Return the time that reading takes: a disk as fast as all reads the expert with most work after it first."""
    read = [used for used in walk.used.values() if used.disk_s > 0]
    if not read:
        return 0.0
    takes_s = np.array([used.disk_s for used in read]) / disks
    return _jackson_s(takes_s, np.array([min(w.copy_s for w in u.on_devices) + tails_s[u.number] for u in read]))


def _copy_s(walk: Walk, tails_s: Floats, boxes: int) -> float:
    """Return the time that copying takes: each device of a box has a lane, and an expert goes through one of them."""
    copied = [
        used for used in walk.used.values() if used.switched and all(times.copy_s > 0 for times in used.on_devices)
    ]
    if not copied:
        return 0.0
    head_s = min(used.disk_s for used in copied)
    takes_s = np.array([[times.copy_s for times in used.on_devices] for used in copied]).T / boxes
    follows_s = tails_s[[used.number for used in copied]]
    if len(takes_s) == 1:
        return head_s + _jackson_s(takes_s[0], follows_s)
    return head_s + least_share(takes_s) + float(follows_s.min())


def _jackson_s(takes_s: Floats, tails_s: Floats) -> float:
    """Return the least time until one machine has done all jobs, one after another, and all their tails have passed.

    Jackson's rule (1955): no order is better than that of falling tails.
    """
    order = np.argsort(-tails_s, kind="stable")
    return float((np.cumsum(takes_s[order]) + tails_s[order]).max())


def _compute_s(walk: Walk, work: LeastWork) -> float:
    """Return the time that batches take: after any moment, at least the work of stages that cannot begin before it."""
    if not walk.used:
        return 0.0
    begins_s, numbers = np.frombuffer(walk.begins_s), np.frombuffer(walk.numbers, dtype=np.int32)
    cuts_s = np.unique(np.quantile(begins_s, np.linspace(0, 1, CUTS), method="lower"))
    between = np.searchsorted(cuts_s, begins_s, side="right") - 1
    experts = len(walk.used)
    stages = np.bincount(between * experts + numbers, minlength=len(cuts_s) * experts).reshape(-1, experts)
    from_then_on = stages[::-1].cumsum(axis=0)[::-1].astype(np.float64)
    return max(float(cut) + least_share(work.of(row)) for cut, row in zip(cuts_s, from_then_on, strict=True))


STEPS = 60
"""The number of steps of the search for weights of three machines and more."""


def least_share(work_s: Floats) -> float:
    """Return a time in seconds that no way to share jobs over machines can beat.

    `work_s` is [machine, job]: the time of the whole job on that machine. For any weights of the machines that sum to
    1, no time is below the sum over jobs of the least weighted work (duality of linear programs). For up to two
    machines the best weights are found, so the bound is exact for jobs that may be split; for more, good weights.
    """
    if len(work_s) == 1:
        return float(work_s.sum())
    if len(work_s) == 2:
        return _of_two(*work_s)
    return _of_many(work_s)


def _of_two(first_s: Floats, second_s: Floats) -> float:
    """Try each weight at which a job changes sides: between these the sum is linear, so one of them is the best."""
    counts = first_s + second_s > 0
    first_s, second_s = first_s[counts], second_s[counts]
    if not len(first_s):
        return 0.0
    weight = second_s / (first_s + second_s)
    order = np.argsort(weight)
    first_s, second_s, weight = first_s[order], second_s[order], weight[order]
    # In this order the jobs before the current job are cheaper on the second machine, the others on the first.
    before_s = np.concatenate([[0.0], np.cumsum(second_s)[:-1]])
    behind_s = np.cumsum(first_s[::-1])[::-1]
    return float((weight * behind_s + (1 - weight) * before_s).max())


def _of_many(work_s: Floats) -> float:
    """Lower the weights of machines with less work than the busiest machine, in ever smaller steps."""
    machines = len(work_s)
    weight = np.full(machines, 1 / machines)
    best = 0.0
    for step in range(1, STEPS + 1):
        weighted_s = weight[:, None] * work_s
        chosen = weighted_s.argmin(axis=0)
        best = max(best, float(weighted_s.min(axis=0).sum()))
        load_s = np.bincount(chosen, work_s[chosen, np.arange(work_s.shape[1])], minlength=machines)
        if load_s.max() <= 0:
            return best
        weight = weight * np.exp((load_s / load_s.max() - 1) / np.sqrt(step))
        weight /= weight.sum()
    return best
