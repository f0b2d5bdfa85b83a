"""Measures what the head of a large cluster costs: expert placement, the time of a decision, and its memory.

The boxes are no controllers here: each answers its stages one after another, in the times of `StagePrice`, and loads an
absent expert first. So the figures are the head's alone.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import psutil

from coe.board.router import Router
from coe.board.steps import Component, Step
from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds, ExpertPlacement, Traffic
from coe.cluster.decisions.head import ClusterHead
from coe.cluster.decisions.head_events import ExpertsReported, HeadEvent, SendStage, StageDone
from coe.cluster.decisions.place_experts import place_experts
from coe.cluster.decisions.routing import BoxView, ReplicaRouting, StagePrice
from coe.core import Finding, Request, Verdict
from coe.scheduler.events import Arrived, Reply
from coe.sim.agenda import Agenda, Arrival
from coe.system import peak_resident_bytes

RUN_S, LOAD_S, MOVE_S, LATENCY_S = 0.002, 0.05, 0.0006, 0.0002
HELD_SHARE = 0.64
"""The part of the experts that the memory of all boxes holds."""
_BYTES = 100


@dataclass(frozen=True, slots=True)
class ClusterScale:
    """One measurement. `place_s` is the time of expert placement; a decision is a stage sent, and its answer taken in.

    `us_per_image` is the processor time of the head, `busiest` the work of the busiest box over the mean.

    `head_bytes` is the growth of the process by the homes, the views and the head; `growth_bytes` its further growth
    during the run, with images under way and the simulation itself.
    """

    experts: int
    boxes: int
    images: int
    images_per_s: float
    place_s: float
    stages: int
    decisions_per_s: float
    us_per_image: float
    most_under_way: int
    busiest: float
    head_bytes: int
    growth_bytes: int
    peak_rss_bytes: int


def measure(experts: int, boxes: int, images: int, every_s: float, seed: int = 0) -> ClusterScale:
    """Let images come to a cluster; counts fall as 1 / rank, and half of the classifiers lead to a detector."""
    router, needs = _line(experts)
    names = [f"box{number}" for number in range(boxes)]
    budget = round(HELD_SHARE * experts / boxes) * _BYTES
    before = _resident_bytes()
    began = time.perf_counter()
    homes = place_experts(needs, [BoxBudget(name, budget) for name in names], Traffic(MOVE_S, images))
    place_s = time.perf_counter() - began
    prices = dict.fromkeys((need.expert for need in needs), StagePrice(RUN_S, LOAD_S))
    head = ClusterHead(router, ReplicaRouting(MOVE_S), homes, [BoxView(name, prices) for name in names])
    run = _Run(head, homes)
    made = _resident_bytes()
    run.go(_arrivals(router, images, every_s, seed))
    head.check(idle=True)
    return ClusterScale(
        experts=len(needs),
        boxes=boxes,
        images=images,
        images_per_s=1 / every_s,
        place_s=place_s,
        stages=run.stages,
        decisions_per_s=run.stages / run.head_s,
        us_per_image=1e6 * run.head_s / images,
        most_under_way=run.most,
        busiest=max(run.worked_s.values()) * boxes / sum(run.worked_s.values()),
        head_bytes=made - before,
        growth_bytes=_resident_bytes() - made,
        peak_rss_bytes=peak_resident_bytes(),
    )


def _line(experts: int) -> tuple[Router, list[ExpertNeeds]]:
    """Return the rules and needs of a board, without an expert graph: a head needs none."""
    detectors = max(1, experts // 20)
    behind = [Step(f"d{number}", 0.0, {"ok": Verdict.OK}, {"ok": 1.0}) for number in range(detectors)]
    components, total = {}, sum(1 / rank for rank in range(1, experts - detectors + 1))
    needs, used = [], dict.fromkeys((step.expert for step in behind), 0.0)
    for number in range(experts - detectors):
        usage, name = 1 / (number + 1) / total, f"c{number}"
        after = (behind[number // 2 % detectors],) if number % 2 else Verdict.OK
        components[f"C{number}"] = Component(f"C{number}", usage, Step(name, 0.0, {"ok": after}, {"ok": 1.0}))
        leads = {}
        if number % 2:
            detector = behind[number // 2 % detectors].expert
            used[detector] += usage
            leads = {detector: 1.0}
        needs.append(ExpertNeeds(name, _BYTES, {"": usage}, RUN_S, LOAD_S, leads))
    needs += [ExpertNeeds(detector, _BYTES, {"": usage}, RUN_S, LOAD_S) for detector, usage in used.items()]
    return Router(components), needs


def _arrivals(router: Router, images: int, every_s: float, seed: int) -> list[Arrival]:
    sums = list(accumulate(component.count for component in router.components.values()))
    drawn = random.Random(seed).choices(list(router.components), cum_weights=sums, k=images)
    return [Arrival(number * every_s, Request(number, component)) for number, component in enumerate(drawn)]


class _Run:
    """The boxes, the time, and what is counted."""

    def __init__(self, head: ClusterHead, homes: ExpertPlacement) -> None:
        self.head_s = 0.0
        self.stages = self.most = 0
        self.worked_s = dict.fromkeys(homes.held, 0.0)
        self._head, self._agenda = head, Agenda(time.process_time)
        self._held = {box: frozenset(experts) for box, experts in homes.held.items()}
        self._free_s = dict.fromkeys(homes.held, 0.0)
        self._disk_free_s = dict.fromkeys(homes.held, 0.0)
        self._there_s: dict[tuple[str, str], float] = {}
        """When an absent expert that is loaded for waiting stages is there."""
        for box, held in self._held.items():
            head.handle(ExpertsReported(box, dict.fromkeys(sorted(held), 0.0)), 0.0)

    def go(self, arrivals: list[Arrival]) -> None:
        """Let all images come, and be answered."""
        self._agenda.run(arrivals, lambda request: self._tell(Arrived(request)))

    def _tell(self, event: HeadEvent) -> None:
        began = self._agenda.clock()
        orders = self._head.handle(event, self._agenda.now)
        self.head_s += self._agenda.clock() - began
        self.most = max(self.most, self._head.under_way)
        for order in orders:
            if isinstance(order, SendStage):
                self._run(order)
            else:
                assert not isinstance(order, Reply) or order.result.failure is None, order

    def _run(self, order: SendStage) -> None:
        self.stages += 1
        box, expert, now = order.box, order.request.component, self._agenda.now
        ready_s = now + LATENCY_S + (MOVE_S if order.with_image else 0.0)
        if expert not in self._held[box]:
            place = (box, expert)
            if self._there_s.get(place, 0.0) < now:
                self._there_s[place] = self._disk_free_s[box] = max(ready_s, self._disk_free_s[box]) + LOAD_S
            ready_s = max(ready_s, self._there_s[place])
        self._free_s[box] = max(ready_s, self._free_s[box]) + RUN_S
        self.worked_s[box] += RUN_S
        done = StageDone(order.request.id, Finding(expert, "fp32", "ok", 1.0))
        self._agenda.at(self._free_s[box] + LATENCY_S, partial(self._tell, done))


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
