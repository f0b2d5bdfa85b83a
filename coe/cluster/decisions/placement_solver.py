"""Solves a placement step by step, so that its objective becomes small (see `coe.cluster.decisions.place_experts`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coe.cluster.decisions.affinity_groups import Flow, affinity_groups
from coe.cluster.decisions.book import WHOLE, Book, Burden, Floats, joint
from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds, ExpertPlacement, Traffic
from coe.helpers.arithmetic import added

BUSY_SHARE = 1 / 50
"""An expert that keeps a smaller part of a box busy gets no second box for its work alone."""


class PlacementSolver:
    """One placement in the making: the books, and the boxes of each expert by their numbers."""

    def __init__(self, needs: Mapping[str, ExpertNeeds], boxes: Sequence[BoxBudget], traffic: Traffic) -> None:
        self._needs, self._boxes, self._traffic = needs, boxes, traffic
        self._usage = {name: added(need.usage.values()) for name, need in needs.items()}
        held = self._worth_holding()
        boards = {board for need in needs.values() for board, stages in need.usage.items() if stages > 0}
        # A single board is all boards together.
        kinds = sorted(boards) if len(boards) > 1 else []
        self._burdens = {name: self._burden(name, kinds, held=name in held) for name in needs}
        total = joint(self._burdens.values())
        speed = added(box.speed for box in boxes)
        mean_s = {
            board: total.work_s.get(board, 0.0) / speed + total.loads_s.get(board, 0.0) / len(boxes)
            for board in (WHOLE, *kinds)
        }
        worth_s = min((self.worth(name) for name in held), default=0.0) if len(held) < len(needs) else 0.0
        self.book = Book([box.bytes for box in boxes], [box.speed for box in boxes], mean_s, worth_s)
        self._fair_s = total.work_s.get(WHOLE, 0.0) / speed
        self._boxes_of: dict[str, list[int]] = {}
        self._flows = self._all_flows()
        self._leaders: defaultdict[str, list[Flow]] = defaultdict(list)
        self._followers: defaultdict[str, list[Flow]] = defaultdict(list)
        for flow in self._flows:
            self._leaders[flow.follower].append(flow)
            self._followers[flow.leader].append(flow)
        self._parts = {name: _parts(burden, total, len(boxes)) for name, burden in self._burdens.items()}

    def _all_flows(self) -> list[Flow]:
        flows = (
            Flow(name, other, self._usage[name] * stages)
            for name, need in self._needs.items()
            for other, stages in need.leads.items()
            if other in self._needs and other != name
        )
        return [flow for flow in flows if flow.images > 0]

    # What experts are worth

    def loads_s(self, expert: str) -> float:
        """Return l(e): the seconds of loads of an expert that no box holds, for an image."""
        images = self._traffic.images
        return self._needs[expert].load_s * -math.expm1(-self._usage[expert] * images) / images

    def worth(self, expert: str) -> float:
        """Return the seconds of loads that holding an expert spares, for an image and a byte."""
        return self.loads_s(expert) / max(1, self._needs[expert].bytes)

    def _worth_holding(self) -> set[str]:
        """Return the experts that would be held if all memory were one, the worthiest first."""
        room = sum(box.bytes for box in self._boxes)
        held = set()
        for expert in self._worthiest(self._needs):
            if self._needs[expert].bytes <= room:
                room -= self._needs[expert].bytes
                held.add(expert)
        return held

    def _worthiest(self, experts: Iterable[str]) -> list[str]:
        return sorted(experts, key=lambda expert: (-self.worth(expert), -self._usage[expert], expert))

    def _burden(self, expert: str, kinds: Sequence[str], *, held: bool) -> Burden:
        need, usage = self._needs[expert], self._usage[expert]
        parts = {WHOLE: 1.0 if usage > 0 else 0.0}
        parts |= {board: need.usage[board] / usage for board in kinds if need.usage.get(board, 0.0) > 0}
        work_s = {board: part * usage * need.stage_s for board, part in parts.items()}
        loads_s = {board: 0.0 if held else part * self.loads_s(expert) for board, part in parts.items()}
        return Burden(work_s, loads_s, need.bytes if held else 0)

    # Where experts go

    def settle(self, expert: str, boxes: Sequence[int]) -> None:
        """Give an expert these boxes, in place of those that it has."""
        self._take_off(expert)
        part = self._burdens[expert].part(1 / len(boxes))
        for box in boxes:
            self.book.add(part, box)
        self._boxes_of[expert] = list(boxes)

    def _take_off(self, expert: str) -> None:
        boxes = self._boxes_of.pop(expert, [])
        for box in boxes:
            self.book.remove(self._burdens[expert].part(1 / len(boxes)), box)

    def boxes(self, expert: str) -> Sequence[int]:
        """Return the boxes of an expert; none if it has none yet."""
        return self._boxes_of.get(expert, [])

    def keep(self, before: ExpertPlacement) -> None:
        """Leave experts on their boxes that are still there; if none is, an expert goes to its standby."""
        numbers = {box.id: number for number, box in enumerate(self._boxes)}
        for expert in self._worthiest(self._needs):
            boxes = [numbers[box] for box in before.boxes.get(expert, ()) if box in numbers]
            standby = before.standby.get(expert)
            if not boxes and standby in numbers:
                boxes = [numbers[standby]]
            boxes = [box for box in boxes if self._fits(expert)[box]]
            if boxes:
                self.settle(expert, boxes)

    def place_rest(self) -> None:
        """Place each expert that has no box, group by group."""
        rest = [expert for expert in self._needs if expert not in self._boxes_of]
        for group in affinity_groups(rest, self._flows, self._parts):
            rises = self._rises(group)
            best = int(np.argmin(rises))
            for expert in group:
                self.settle(expert, [best])

    def fill(self, fresh: Collection[int]) -> None:
        """Move groups to boxes that are new, the heaviest first, as long as the objective falls by it."""
        if not fresh:
            return
        for group in self._groups_on_one_box():
            if (before := self.boxes(group[0])[0]) in fresh:
                continue
            for expert in group:
                self._take_off(expert)
            rises = self._rises(group)
            box = min((before, *sorted(fresh)), key=lambda box: float(rises[box]))
            for expert in group:
                self.settle(expert, [box])

    def _groups_on_one_box(self) -> list[Sequence[str]]:
        """Return the groups among experts that have the same single box."""
        single = {expert: boxes[0] for expert, boxes in self._boxes_of.items() if len(boxes) == 1}
        return affinity_groups(
            sorted(single), self._flows, self._parts, together=lambda one, other: single[one] == single[other]
        )

    def _rises(self, group: Sequence[str]) -> Floats:
        """Return by how much the objective rises with a group, for each box; infinity where it does not fit."""
        rises = self.book.rise(joint(self._burdens[expert] for expert in group))
        largest = max(group, key=lambda expert: self._needs[expert].bytes)
        for expert in group:
            for flow in self._leaders[expert]:
                if leaders := self.boxes(flow.leader):
                    # Only for the images that come from that box is the expert where they are.
                    rises[leaders] -= self._traffic.move_s * flow.images / len(leaders)
            for flow in self._followers[expert]:
                if followers := self.boxes(flow.follower):
                    rises[followers] -= self._traffic.move_s * flow.images
        rises[~self._fits(largest)] = np.inf
        return rises

    def _fits(self, expert: str) -> npt.NDArray[np.bool_]:
        fits: npt.NDArray[np.bool_] = self.book.budget_bytes >= self._needs[expert].bytes
        return fits

    # Replicas

    def replicate(self) -> None:
        """Give experts further boxes as long as that pays, those with most work first."""
        if len(self._boxes) == 1:
            return
        for expert in sorted(self._boxes_of, key=lambda expert: (-self._burdens[expert].size.work_s, expert)):
            busy = self._burdens[expert].size.work_s > BUSY_SHARE * self._fair_s
            while (busy or self._lacks(expert)) and self._replicate(expert):
                pass

    def _lacks(self, expert: str) -> list[int]:
        """Return the boxes of predecessors that lack an expert."""
        here = set(self.boxes(expert))
        return sorted({box for flow in self._leaders[expert] for box in self.boxes(flow.leader)} - here)

    def _replicate(self, expert: str) -> bool:
        """Give an expert another box if the objective falls by more than the load that this costs; return whether."""
        boxes = self.boxes(expert)
        fits = self._fits(expert)
        fits[boxes] = False
        if not fits.any():
            return False
        before = self.book.objective() + self._traffic.move_s * self.apart_images(expert)
        busy = np.where(fits, self.book.busy_s(), np.inf)
        candidates = dict.fromkeys([int(np.argmin(busy)), *(box for box in self._lacks(expert) if fits[box])])
        after = {}
        for box in candidates:
            self.settle(expert, [*boxes, box])
            after[box] = self.book.objective() + self._traffic.move_s * self.apart_images(expert)
        best = min(after, key=lambda box: after[box])
        pays = after[best] + self._needs[expert].load_s / self._traffic.images < before * (1 - 1e-9)
        self.settle(expert, [*boxes, best] if pays else boxes)
        return pays

    def apart_images(self, expert: str) -> float:
        """Return how many images go to another box before or after an expert, for an image."""
        flows = (*self._leaders[expert], *self._followers[expert])
        return added(flow.images * self._apart(flow) for flow in flows)

    def _apart(self, flow: Flow) -> float:
        leaders, followers = self.boxes(flow.leader), self.boxes(flow.follower)
        return sum(box not in followers for box in leaders) / len(leaders) if leaders and followers else 0.0

    # The end

    def placement(self, standbys: Mapping[str, int]) -> ExpertPlacement:
        """Return the boxes of each expert, as they were decided, with the experts that each box holds."""
        names = [box.id for box in self._boxes]
        held: dict[str, tuple[str, ...]] = {}
        beyond: dict[str, tuple[str, ...]] = {}
        on_box: defaultdict[int, list[str]] = defaultdict(list)
        for expert in self._worthiest(self._boxes_of):
            for box in self.boxes(expert):
                on_box[box].append(expert)
        for number, budget in enumerate(self._boxes):
            room, inside, outside = budget.bytes, list[str](), list[str]()
            for expert in sorted(on_box[number], key=lambda e: -self.worth(e) / len(self._boxes_of[e])):
                fits = self._needs[expert].bytes <= room
                (inside if fits else outside).append(expert)
                room -= self._needs[expert].bytes if fits else 0
            held[budget.id], beyond[budget.id] = tuple(inside), tuple(outside)
        boxes = {expert: tuple(names[box] for box in self.boxes(expert)) for expert in self._needs}
        standby = {expert: names[box] for expert, box in standbys.items()}
        return ExpertPlacement(boxes, standby, held, beyond)

    def standbys(self, before: ExpertPlacement | None) -> dict[str, int]:
        """Return a second box for each expert that has one box, so that each box's experts spread over all others.

        A standby of `before` stays as long as it is there.
        """
        numbers = {box.id: number for number, box in enumerate(self._boxes)}
        spread = np.zeros((len(self._boxes), len(self._boxes)))
        standby: dict[str, int] = {}
        for group in self._groups_on_one_box():
            first = self.boxes(group[0])[0]
            fits = self._fits(max(group, key=lambda expert: self._needs[expert].bytes))
            fits[first] = False
            kept = {} if before is None else {e: numbers.get(before.standby.get(e, "")) for e in group}
            busy = np.where(fits, self.book.busy_s() + spread[first], np.inf)
            best = int(np.argmin(busy))
            for expert in group:
                box = kept.get(expert)
                box = best if box is None or not fits[box] else box
                if fits[box]:
                    standby[expert] = box
                    size = self._burdens[expert].size
                    spread[first, box] += size.work_s / self.book.speeds[box] + size.loads_s
        return standby


def _parts(burden: Burden, total: Burden, boxes: int) -> tuple[float, ...]:
    """Return which part of a box a burden takes: of its work, its loads, and its bytes."""
    size, whole = burden.size, total.size
    sizes = ((size.work_s, whole.work_s), (size.loads_s, whole.loads_s), (size.held_bytes, whole.held_bytes))
    return tuple(boxes * one / all if all > 0 else 0.0 for one, all in sizes)
