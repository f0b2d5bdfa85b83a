"""Carries out the orders of a cluster's head.

The head's thread alone calls it, but for `metrics`; only `close` waits.

What happens comes in as `HeadInput`s; messages to boxes wait until `flush`, so that a box gets all that came
out of several events in one parcel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from coe.board.rules import Rules
from coe.cluster.decisions.expert_placement import ExpertNeeds, ExpertPlacement, Traffic
from coe.cluster.decisions.head import ClusterHead
from coe.cluster.decisions.head_events import (
    BoxJoined,
    BoxLost,
    ExpertsMoved,
    GiveRules,
    HeadEvent,
    Order,
    Release,
    SendStage,
)
from coe.cluster.decisions.place_experts import budget_of, place_experts
from coe.cluster.decisions.routing import BoxView, ReplicaRouting, stage_prices
from coe.cluster.links import Link
from coe.cluster.messages import BoxReport, NewRules, Parcel, RunStage, ToBox
from coe.core import Failure, Request, Result
from coe.results.metrics import Metrics
from coe.scheduler.events import Arrived, Command, Event, Late, Lost, PaceChanged, Rejected, Reply, Stopped
from coe.scheduler.strategies import Strategy

Observe = Callable[[Event | None, list[Command]], None]
"""Shows watchers what happened, and what was said."""


@dataclass(frozen=True, slots=True)
class ExpertPlacer:
    """What decides where experts lie: their needs, and the traffic of images."""

    needs: Sequence[ExpertNeeds]
    traffic: Traffic
    strategy: Strategy

    def place(self, links: Sequence[Link], before: ExpertPlacement | None) -> ExpertPlacement:
        """Place all experts on these boxes."""
        budgets = [budget_of(link.id, self.strategy.pooled(link.facts.plan)) for link in links]
        return place_experts(self.needs, budgets, self.traffic, before)


@dataclass(frozen=True, slots=True)
class ImageArrived:
    """An image came; `shared` is what boxes fetch it by, or why no box will look at it."""

    request: Request
    shared: object | Failure


@dataclass(frozen=True, slots=True)
class BoxReported:
    """A box has reported."""

    box: str
    report: BoxReport


@dataclass(frozen=True, slots=True)
class BoxOpened:
    """The box of a machine that came; nothing is loaded there."""

    link: Link


HeadInput = ImageArrived | BoxReported | BoxLost | BoxOpened | Stopped


@dataclass(slots=True)
class _Member:
    """A box of the cluster: the number of its next parcel, and what waits to go there."""

    link: Link
    parcels: int = 0
    outgoing: list[ToBox] = field(default_factory=list)


class HeadDriver:
    """The head with its boxes. `rules` are those of all boards, with experts in their variants.

    `now` is the clock, `reply` gets each result once, `observe` sees what watchers see.
    """

    def __init__(
        self,
        rules: Rules,
        links: Sequence[Link],
        placer: ExpertPlacer,
        *,
        now: Callable[[], float],
        reply: Callable[[Result], object],
        observe: Observe,
    ) -> None:
        self._rules, self._placer = rules, placer
        self._now, self._reply, self._observe = now, reply, observe
        self._members = {link.id: _Member(link) for link in links}
        self._placement = placer.place(links, None)
        views = [self._view(link) for link in links]
        routing = ReplicaRouting(placer.traffic.move_s)
        self.head = ClusterHead(rules.router, routing, self._placement, views)
        self._shared: dict[int, object] = {}
        """By request without a result: what boxes fetch its image by."""
        self._reports: dict[str, BoxReport] = {}
        """The last report of each box; those of lost boxes stay, so that no count ever falls."""

    @property
    def links(self) -> list[Link]:
        """The boxes that are there."""
        return [member.link for member in self._members.values()]

    @property
    def is_settled(self) -> bool:
        """Whether all boxes hold their first experts."""
        return all(box in self._reports and self._reports[box].settled for box in self._members)

    def metrics(self) -> list[Metrics]:
        """Return the counts of all boxes, of each by its last report. Any thread may call."""
        return [report.metrics for report in list(self._reports.values())]

    def start(self) -> None:
        """Let the boxes load what lies there."""
        self._tell_head(ExpertsMoved(self._placement))
        self.flush()

    def take_in(self, event: HeadInput) -> None:
        """Take in what happened."""
        match event:
            case ImageArrived():
                self._take_image(event)
            case BoxReported():
                self._take_report(event)
            case BoxLost():
                self._lose(event)
            case BoxOpened():
                self._join(event.link)
            case Stopped():
                self._tell_head(event)
                for member in self._members.values():
                    member.outgoing.append(event)

    def flush(self) -> None:
        """Send what waits, a parcel for each box."""
        for member in self._members.values():
            if member.outgoing:
                member.link.take(Parcel(member.parcels, self._now(), tuple(member.outgoing)))
                member.parcels += 1
                member.outgoing.clear()

    def close(self) -> None:
        """Wait until the boxes have ended, and keep their last counts."""
        links = self.links
        # Side by side: a box that does not answer takes half a minute.
        try:
            with ThreadPoolExecutor(max(1, len(links)), "coe-closes") as pool:
                reports = list(pool.map(lambda link: link.close(), links))
        except RuntimeError:  # the interpreter exits, and lets no thread begin
            reports = [link.close() for link in links]
        for link, report in zip(links, reports, strict=True):
            if report is not None:
                self._reports[link.id] = report

    def _take_image(self, arrived: ImageArrived) -> None:
        request, shared = arrived.request, arrived.shared
        if isinstance(shared, Failure):
            self._observe(Rejected(request, shared), [])
            self._answer(Result.refused(request, shared, self._now()))
            return
        self._shared[request.id] = shared
        self._observe(Arrived(request), [])
        self._tell_head(Arrived(request))

    def _take_report(self, reported: BoxReported) -> None:
        if reported.box not in self._members:
            return
        self._reports[reported.box] = reported.report
        if reported.report.notices:
            self._observe(None, [_of_box(notice, reported.box) for notice in reported.report.notices])
        for event in reported.report.events:
            self._tell_head(event)

    def _lose(self, lost: BoxLost) -> None:
        if self._members.pop(lost.box, None) is None:
            return
        self._observe(Lost("", lost.reason, lost.box), [])
        self._tell_head(lost)
        self._move()

    def _join(self, link: Link) -> None:
        self._members[link.id] = _Member(link)
        self._tell_head(BoxJoined(self._view(link)))
        self._move()

    def _move(self) -> None:
        if self._members:
            before = self._placement if set(self._placement.held) & set(self._members) else None
            self._placement = self._placer.place(self.links, before)
            self._tell_head(ExpertsMoved(self._placement))

    def _view(self, link: Link) -> BoxView:
        plan = self._placer.strategy.pooled(link.facts.plan)
        return BoxView(link.id, stage_prices(link.facts.costs, plan, self._rules.experts))

    def _tell_head(self, event: HeadEvent) -> None:
        for order in self.head.handle(event, self._now()):
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        match order:
            case SendStage():
                image = self._shared[order.request_id] if order.with_image else None
                self._members[order.box].outgoing.append(RunStage(order.request, order.request_id, image))
            case Reply():
                self._answer(order.result)
            case Release():
                self._members[order.box].outgoing.append(order)
            case GiveRules():
                rules = NewRules(self._placement.seen_by(order.box), order.also)
                self._members[order.box].outgoing.append(rules)

    def _answer(self, result: Result) -> None:
        self._shared.pop(result.request.id, None)
        self._observe(None, [Reply(result)])
        self._reply(result)


def _of_box(notice: Late | PaceChanged, box: str) -> Late | PaceChanged:
    """Return what a box says of a device with the name of the box."""
    return replace(notice, box=box) if isinstance(notice, PaceChanged) else notice
