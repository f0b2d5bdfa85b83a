"""The needs of a workload in any order: the stages of each request, and the earliest time at which each could begin.

Every request is walked as if it were alone on a box with endless memory and idle lanes and executors.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coe.core import Finding, Request, Stage
from coe.scheduler.cases import Cases
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import Plan
from coe.sim.oracle import Oracle

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
    """The stages of all requests taken so far: `begins_s` is the earliest begin of each, `numbers` its expert's number.

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
