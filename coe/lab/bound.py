"""The bound that no order can beat: the fewest switches and the least time, if everything were known beforehand.

Each term assumes that only one resource limits the run. Each is a valid bound, so the largest is too.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coe.core import Finding, Request, Stage
from coe.scheduler.cases import Cases
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import Plan
from coe.sim.oracle import Oracle

if TYPE_CHECKING:
    from coe.lab.workloads.workload import Workload


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """A device at its best: `speed` of all executors together, `rate` the highest speed of a single executor."""

    name: str
    speed: float
    rate: float
    capacity_bytes: int

    @staticmethod
    def of(name: str, plan: Plan, scaling: Sequence[float], boxes: int = 1) -> DeviceLimits:
        """Return a device of a plan that has executors; see `coe.sim.resources.Processor` for `scaling`.

        With several `boxes` each has such a device, and they count as one.
        """
        executors = [executor for executor in plan.executors if executor.device == name]
        pools = {executor.pool for executor in executors}
        totals = [scaling[min(busy, len(scaling)) - 1] if scaling else busy for busy in range(1, len(executors) + 1)]
        return DeviceLimits(
            name,
            speed=boxes * float(max(totals)),
            rate=max(total / busy for busy, total in enumerate(totals, 1)),
            capacity_bytes=max(pool.capacity_bytes for pool in plan.pools if pool.id in pools),
        )

    def batch(self, cost: Cost) -> int:
        """Return the largest batch that is useful and fits next to the weights of its expert."""
        return max(1, min(cost.max_batch, cost.images_in(self.capacity_bytes - cost.weights_bytes)))


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """An expert on one device: the earliest time at which it is there, and the times of its copy and of one image."""

    ready_s: float
    copy_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class UsedExpert:
    """An expert that stages need, with its least times on each device. `disk_s` is 0 if it need not be read."""

    number: int
    switched: bool
    disk_s: float
    weights_bytes: int
    on_devices: tuple[LeastTimes, ...]
    ready_s: float

    def done_s(self, from_s: float) -> float:
        """Return when a stage that may begin at `from_s` can be done."""
        return min(max(from_s, times.ready_s) + times.run_s for times in self.on_devices)


class Walk:
    """All requests taken so far, each as if alone on a box with endless memory, idle lanes and idle executors.

    `begins_s` is the earliest begin of each, `numbers` its expert's number.

    `last_s` is the earliest time of the last reply. `held_up` are the resident experts for which some image is only
    ready after an absent expert has run on it.
    """

    def __init__(
        self,
        cases: Cases,
        oracle: Oracle,
        costs: CostTable,
        devices: Sequence[DeviceLimits],
        resident: Collection[str],
        cached: Collection[str],
    ) -> None:
        self.costs, self.devices = costs, devices
        self.used: dict[str, UsedExpert] = {}
        self.begins_s, self.numbers = array("d"), array("i")
        self.last_s = 0.0
        self.held_up: set[str] = set()
        self._cases, self._oracle = cases, oracle
        self._resident, self._cached = frozenset(resident), frozenset(cached)

    def take(self, at_s: float, request: Request) -> None:
        """Walk one request, the earliest end first, because a stage begins with the first branch that reaches it."""
        findings: dict[str, Finding] = {}
        absent = late = False
        coming: list[tuple[float, int, Stage]] = []
        stages, now = self._cases.open(request, at_s).stages, at_s
        while True:
            for stage in stages:
                used = self.used.get(stage.expert) or self._meet(stage.expert)
                absent = absent or used.switched
                # The first stage waits for no other; a later resident stage may be held up.
                late = late or (bool(findings) and not used.switched and stage.expert not in self.held_up)
                self.begins_s.append(max(now, used.ready_s))
                self.numbers.append(used.number)
                heapq.heappush(coming, (used.done_s(now), len(self.numbers), stage))
            if not coming:
                break
            now, _, stage = heapq.heappop(coming)
            findings[stage.expert] = finding = self._oracle.find(request, stage.expert)
            stages = self._cases.found(stage, finding, now).stages
        self.last_s = max(self.last_s, now)
        if absent and late:
            self._hold_up(request, findings)

    def _hold_up(self, request: Request, findings: Mapping[str, Finding]) -> None:
        """Walk a request as far as resident experts alone take it; residents that come later are held up."""
        stages = self._cases.open(request, 0.0).stages
        here: list[Stage] = []
        away: list[Stage] = []
        stuck = False
        while True:
            for stage in stages:
                if self.used[stage.expert].switched:
                    away.append(stage)
                else:
                    here.append(stage)
                    if stuck:
                        self.held_up.add(stage.expert)
            if not here and not away:
                return
            stuck = stuck or not here
            stage = (here or away).pop()
            stages = self._cases.found(stage, findings[stage.expert], 0.0).stages

    def _meet(self, expert: str) -> UsedExpert:
        costs = [self.costs(device.name, expert) for device in self.devices]
        switched = expert not in self._resident
        read = switched and expert not in self._cached
        # A read may serve another device through the host's copy, so the least read counts for all devices.
        disk_s = min(cost.load_s - cost.copy_s for cost in costs) if read else 0.0
        on_devices = tuple(
            LeastTimes(disk_s + cost.copy_s if switched else 0.0, cost.copy_s, cost.batch_s(1) / device.rate)
            for cost, device in zip(costs, self.devices, strict=True)
        )
        self.used[expert] = used = UsedExpert(
            number=len(self.used),
            switched=switched,
            disk_s=disk_s,
            weights_bytes=min(cost.weights_bytes for cost in costs),
            on_devices=on_devices,
            ready_s=min(times.ready_s for times in on_devices),
        )
        return used


class LeastWork:
    """The least time of experts' stages on each device, at the full speed of all its executors."""

    def __init__(self, walk: Walk) -> None:
        costs = [[walk.costs(device.name, expert) for expert in walk.used] for device in walk.devices]
        speed = np.array([[device.speed] for device in walk.devices])
        self._per_image_s = np.array([[cost.per_image_s for cost in row] for row in costs]) / speed
        self._base_s = np.array([[cost.base_s for cost in row] for row in costs]) / speed
        batch = [[device.batch(cost) for cost in row] for device, row in zip(walk.devices, costs, strict=True)]
        self._batch = np.array(batch, dtype=np.float64)

    def of(self, stages: Floats) -> Floats:
        """Return [device, expert]: the seconds of all `stages` [expert] if they ran on that device.

        On several devices each may run a part of the stages. Then the cost of an image must not grow with the number of
        stages, so all batches after the first count in fractions. On one device batches are whole.
        """
        batches = stages / self._batch
        batches = np.ceil(batches) if len(batches) == 1 else np.where(stages > 0, np.maximum(1, batches), 0)
        work_s: Floats = self._per_image_s * stages + self._base_s * batches
        return work_s


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


def belady_switches(
    stages: Sequence[str], bytes_by_expert: Mapping[str, int], room_bytes: int, resident: Collection[str]
) -> int:
    """Return how often an expert is loaded for `stages`, each named by its expert, into one pool (Belady, 1966).

    `resident` experts are there at the beginning. For each load the experts leave whose next stage is furthest off, and
    before those the experts without one. A stage's expert is loaded even if it does not fit.
    """
    next_stage = [math.inf] * len(stages)
    first: dict[str, float] = {}
    for number in range(len(stages) - 1, -1, -1):
        next_stage[number] = first.get(stages[number], math.inf)
        first[stages[number]] = number
    here = {expert: first.get(expert, math.inf) for expert in resident}
    furthest = [(-number, expert) for expert, number in here.items()]
    heapq.heapify(furthest)
    held_bytes = sum(bytes_by_expert[expert] for expert in here)
    switches = 0
    for number, expert in enumerate(stages):
        if expert not in here:
            switches += 1
            held_bytes += bytes_by_expert[expert]
            while held_bytes > room_bytes and furthest:
                negative, leaving = heapq.heappop(furthest)
                # Entries of experts that have run since, or have left, are void.
                if here.get(leaving) == -negative:
                    del here[leaving]
                    held_bytes -= bytes_by_expert[leaving]
        here[expert] = next_stage[number]
        heapq.heappush(furthest, (-next_stage[number], expert))
    return switches
