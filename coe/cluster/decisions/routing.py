"""Which box takes a stage? A pure decision: views of the boxes in, a box out.

A view is what the head of the cluster knows of a box: the stages that it sent there and that have no answer yet, and
what the box's controller said of its experts. So a decision waits for nobody, and takes as long with many experts and
boxes as with few.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.helpers.arithmetic import added
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class StagePrice:
    """The seconds that a stage keeps a box busy, all its executors together, and those in which its expert comes."""

    run_s: float
    load_s: float


Prices = Mapping[str, StagePrice]
"""By expert; equal boxes share them."""


@dataclass(slots=True)
class BoxView:
    """What is known of a box: `work_s` of unanswered stages, and `loads_s` of the absent experts that they wait for.

    `pace` is how many times as long as its price a stage takes there now, by the box's controller.

    `comes_s` holds the seconds in which an expert would be there, by the box's controller: 0 for a resident expert. An
    expert that is not in it comes from the disk. `waiting` counts the unanswered stages.
    """

    id: str
    prices: Prices
    comes_s: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    work_s: float = 0.0
    loads_s: float = 0.0
    pace: float = 1.0

    def __repr__(self) -> str:
        return (
            f"<BoxView {self.id}, {sum(self.waiting.values())} stages, {self.work_s:.1f} s, loads {self.loads_s:.1f} s>"
        )

    def absent_s(self, expert: str) -> float:
        """Return the seconds in which an expert would be there if nothing else were loaded; 0 if it is there."""
        coming_s = self.comes_s.get(expert)
        return self.prices[expert].load_s if coming_s is None else coming_s

    def done_s(self, expert: str) -> float:
        """Return the predicted seconds until one more stage of an expert would be done.

        Disk and processors work at the same time. A stage whose expert others wait for here adds nothing to the loads:
        however long they take, it shares that load, and another box would have to load the expert too.
        """
        ready_s = self.work_s * self.pace
        if expert not in self.waiting and (absent_s := self.absent_s(expert)) > 0:
            ready_s = max(ready_s, self.loads_s + absent_s)
        return ready_s + self.prices[expert].run_s * self.pace

    def sent(self, expert: str) -> None:
        """Count a stage that goes to the box."""
        self.work_s += self.prices[expert].run_s
        before = self.waiting.get(expert, 0)
        self.waiting[expert] = before + 1
        if not before:
            self.loads_s += self.absent_s(expert)

    def answered(self, expert: str) -> None:
        """Count a stage that was answered."""
        self.waiting[expert] -= 1
        self.work_s -= self.prices[expert].run_s
        if not self.waiting[expert]:
            del self.waiting[expert]
            self.loads_s -= self.absent_s(expert)
            if not self.waiting:
                # Rounding must not pile up over weeks of stages.
                self.work_s = self.loads_s = 0.0

    def reported(self, comes_s: Mapping[str, float], pace: float = 1.0) -> None:
        """Note the seconds until each of these experts would be resident, and the pace of the box."""
        self.pace = pace
        for expert, seconds in comes_s.items():
            if expert in self.waiting:
                self.loads_s += seconds - self.absent_s(expert)
            self.comes_s[expert] = seconds


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


@dataclass(frozen=True, slots=True)
class ReplicaRouting:
    """A stage goes to the replica of its expert that would be done with it first.

    It goes to the standby only if that would be done sooner even after loading the expert once more, because an expert
    that is loaded on two boxes takes the time of two disks. An image takes `move_s` to a box that does not have it.
    """

    move_s: float

    def choose(
        self,
        expert: str,
        views: Mapping[str, BoxView],
        placement: ExpertPlacement,
        holding: Collection[str],
        avoid: Collection[str] = (),
    ) -> str | None:
        """Return the box of `ExpertPlacement.of` that would be done first, at equal times the first of them.

        The boxes of `holding` have the stage's image. A box that is lost has no view, and is passed over, as are those
        of `avoid`. None: no box may run the stage.
        """
        best, best_s = None, math.inf
        for box in placement.boxes.get(expert, ()):
            view = views.get(box)
            if view is not None and box not in avoid:
                done_s = view.done_s(expert) + (0.0 if box in holding else self.move_s)
                if done_s < best_s:
                    best, best_s = box, done_s
        standby = placement.standby.get(expert, "")
        view = views.get(standby)
        if view is not None and standby not in avoid:
            done_s = view.done_s(expert) + view.absent_s(expert) + (0.0 if standby in holding else self.move_s)
            if done_s < best_s:
                return standby
        return best
