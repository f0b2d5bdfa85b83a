"""The head of a cluster: `handle(event, now) -> orders`. It follows each image from box to box, and answers it once.

Like the controller of a box it has no I/O, thread or clock: whoever drives it, in virtual time or over a real network,
carries out the orders and reports what happened. Rules and verdicts are here alone; a box runs single stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from coe.board.router import Router
from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.failing_boxes import SuspectImages
from coe.cluster.decisions.head_events import (
    BoxJoined,
    BoxLost,
    ExpertsMoved,
    ExpertsReported,
    GiveRules,
    HeadEvent,
    Order,
    Release,
    SendStage,
    StageDone,
)
from coe.cluster.decisions.routing import BoxView, ReplicaRouting
from coe.cluster.decisions.stage_rules import StageRequest
from coe.core import Failure, FailureKind, Request, Stage
from coe.scheduler.cases import Advance, Cases
from coe.scheduler.events import Arrived, Reply, Stopped
from coe.scheduler.failures import STOPPED

_OF_THE_BOX = frozenset({FailureKind.LOAD, FailureKind.DEVICE, FailureKind.STOPPED, FailureKind.LINE})
"""Failures for which another box may be luckier."""
_ENDS_BOX = frozenset({FailureKind.DEVICE, FailureKind.LINE})
"""Failures after which a box is lost, perhaps by the image."""

_NO_BOX = Failure(FailureKind.DEVICE, "every box of the cluster is lost")


@dataclass(frozen=True, slots=True)
class _Sent:
    stage: Stage
    box: str
    failed_on: frozenset[str]


@dataclass(frozen=True, slots=True)
class _HeldBack:
    stage: Stage
    failed_on: frozenset[str]
    failure: Failure | None


@dataclass(slots=True)
class _Image:
    """An image under way: its request, since when it waits, and the boxes that have it."""

    request: Request
    since_s: float
    boxes: set[str] = field(default_factory=set)


class ClusterHead:
    """Images under way, and where each of their stages runs. `routing` chooses among the boxes of `views`."""

    def __init__(
        self, router: Router, routing: ReplicaRouting, placement: ExpertPlacement, views: Iterable[BoxView]
    ) -> None:
        self._routing, self._placement = routing, placement
        self._views = {view.id: view for view in views}
        self._cases = Cases(router)
        self._images: dict[int, _Image] = {}
        self._sent: dict[int, _Sent] = {}
        self._on_box: dict[str, dict[int, None]] = {box: {} for box in self._views}
        self._stranded: list[Stage] = []
        self._suspects = SuspectImages()
        self._held_back: list[_HeldBack] = []
        """Stages of suspects, until a box has room for them."""
        self._stopped = False
        self._ids = count()
        self._orders: list[Order] = []

    def __repr__(self) -> str:
        return f"<Head of {len(self._on_box)} boxes, {len(self._cases)} images and {len(self._sent)} stages under way>"

    @property
    def under_way(self) -> int:
        """The number of images without an answer."""
        return len(self._cases)

    def handle(self, event: HeadEvent, now: float) -> list[Order]:
        """Take an event and return the orders, in their order. `now` is in seconds and never goes back."""
        match event:
            case Arrived():
                request = event.request
                self._images[request.id] = _Image(request, request.since_s(now))
                self._go_on(request.id, self._cases.open(request, now), now)
            case StageDone():
                self._done(event, now)
            case ExpertsReported():
                if (view := self._views.get(event.box)) is not None:  # a box that is gone says nothing
                    view.reported(event.comes_s, event.pace)
            case BoxLost():
                self._lose(event, now)
            case BoxJoined():
                self._views[event.view.id] = event.view
                self._on_box[event.view.id] = {}
            case ExpertsMoved():
                self._move(event.placement, now)
            case Stopped():
                self._stopped = True
                self._send_stranded(now)
                self._send_held_back(now)
        orders, self._orders = self._orders, []
        return orders

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; raises AssertionError."""
        assert {id for ids in self._on_box.values() for id in ids} == set(self._sent), f"{self!r}: stages by box"
        for box, ids in self._on_box.items():
            waiting = self._views[box].waiting
            assert sum(waiting.values()) == len(ids), f"{self!r}: {waiting} stages on {box}"
        assert not idle or not (self._cases or self._sent or self._images or self._stranded or self._held_back), (
            f"{self!r} at idle"
        )

    # Images

    def _go_on(self, request_id: int, advance: Advance, now: float) -> None:
        for stage in advance.stages:
            self._send(stage, frozenset(), now)
        if advance.result is not None:
            self._suspects.answered(request_id)
            self._orders.append(Reply(advance.result))
            self._orders += [Release(box, request_id) for box in sorted(self._images.pop(request_id).boxes)]

    def _send(self, stage: Stage, failed_on: frozenset[str], now: float, failure: Failure | None = None) -> None:
        """Send a stage to a box. `failure` is that of the last box of `failed_on`."""
        if self._stopped:
            self._fail(stage, STOPPED, now)
            return
        if crashed := self._suspects.crashed_with(stage.request_id):
            self._fail(stage, failure or _culprit(crashed), now)
            return
        image = self._images[stage.request_id]
        choose = partial(self._routing.choose, stage.expert, self._views, self._placement, image.boxes)
        box = choose(failed_on)
        if box is None:
            if failure is not None:
                self._fail(stage, failure, now)
            elif not self._on_box:
                self._fail(stage, _NO_BOX, now)
            elif stage.expert not in self._placement.boxes:
                reason = f"no box of the cluster has expert '{stage.expert}', or has the memory for it"
                self._fail(stage, Failure(FailureKind.DEVICE, reason), now)
            else:
                self._stranded.append(stage)
            return
        if stage.request_id in self._suspects:
            taken = self._suspects.boxes_without_room(stage.request_id)
            box = choose(failed_on | taken)
            if box is None:
                self._held_back.append(_HeldBack(stage, failed_on, failure))
                return
            self._suspects.sent(stage.request_id, box)
        stage_id = next(self._ids)
        self._sent[stage_id] = _Sent(stage, box, failed_on)
        self._on_box[box][stage_id] = None
        self._views[box].sent(stage.expert)
        given = image.request
        request = StageRequest(
            stage_id,
            stage.expert,
            given.name,
            serial=given.serial,
            due_s=given.due_s,
            submitted_s=image.since_s,
            board_key=given.board_key,
        )
        self._orders.append(SendStage(box, request, stage.request_id, box not in image.boxes))
        image.boxes.add(box)

    def _done(self, event: StageDone, now: float) -> None:
        sent = self._sent.pop(event.stage_id, None)
        if sent is None:
            return  # of a box that was given up
        del self._on_box[sent.box][event.stage_id]
        self._views[sent.box].answered(sent.stage.expert)
        suspicious = sent.stage.request_id in self._suspects
        self._go_on_after(sent, event, now)
        if suspicious:
            self._make_room(sent, now)

    def _go_on_after(self, sent: _Sent, event: StageDone, now: float) -> None:
        if event.finding is not None:
            self._suspects.acquit(sent.stage.request_id, sent.box)
            self._go_on(sent.stage.request_id, self._cases.found(sent.stage, event.finding, now), now)
            return
        failure = event.failure or Failure(FailureKind.LINE, f"{sent.box} gave neither a finding nor a reason")
        if failure.kind in _OF_THE_BOX:
            if failure.kind in _ENDS_BOX:
                self._suspects.accuse([sent.stage.request_id], sent.box)
            self._send(sent.stage, sent.failed_on | {sent.box}, now, failure)
        else:
            self._fail(sent.stage, failure, now)

    def _fail(self, stage: Stage, failure: Failure, now: float) -> None:
        self._go_on(stage.request_id, self._cases.failed(stage, failure, now), now)

    # Boxes

    def _lose(self, event: BoxLost, now: float) -> None:
        """Go on without a box: its stages go to other boxes, with their images."""
        box = event.box
        if self._views.pop(box, None) is None:
            return
        for image in self._images.values():
            image.boxes.discard(box)
        lost = [self._sent.pop(stage_id) for stage_id in self._on_box.pop(box)]
        self._suspects.lost(box)
        if event.crashed:
            self._suspects.accuse((sent.stage.request_id for sent in lost), box)
        if not self._on_box:
            self._send_stranded(now)
        for sent in lost:
            self._send(sent.stage, sent.failed_on, now)
        self._send_held_back(now)

    def _move(self, placement: ExpertPlacement, now: float) -> None:
        """Go on with another placement, and send the stages that no box could run."""
        self._placement = placement
        for box, view in self._views.items():
            self._orders.append(GiveRules(box, frozenset(view.waiting)))
        self._send_stranded(now)
        self._send_held_back(now)

    def _send_stranded(self, now: float) -> None:
        stranded, self._stranded = self._stranded, []
        for stage in stranded:
            self._send(stage, frozenset(), now)

    # Suspects

    def _make_room(self, sent: _Sent, now: float) -> None:
        """Send stages of other suspects to the box that a stage of a suspect has left."""
        request_id = sent.stage.request_id
        on_box = self._on_box.get(sent.box, {})
        if not any(self._sent[stage_id].stage.request_id == request_id for stage_id in on_box):
            self._suspects.left(request_id, sent.box)
        self._send_held_back(now)

    def _send_held_back(self, now: float) -> None:
        """Send stages of suspects, the oldest first, as long as a box has room for suspects."""
        held_back, self._held_back = self._held_back, []
        for number, held in enumerate(held_back):
            if not self._stopped and self._suspects.is_full_on(self._on_box):
                self._held_back += held_back[number:]
                break
            self._send(held.stage, held.failed_on, now, held.failure)


def _culprit(boxes: tuple[str, ...]) -> Failure:
    reason = f"{' and '.join(boxes)} crashed while they had this image; it is sent to no other box"
    return Failure(FailureKind.RUN, reason)
