"""Several boxes and a network in virtual time. The head of the cluster decides, and each box's own controller.

Each box is a `Simulator`; all share one agenda. Images come to the head, and travel to a box before their first stage
there; findings and the boxes' forecasts travel back. The network's law: an image goes to a box at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.head import ClusterHead
from coe.cluster.decisions.head_events import (
    GOSSIP_S,
    BoxJoined,
    BoxLost,
    ExpertsMoved,
    ExpertsReported,
    GiveRules,
    HeadEvent,
    Release,
    SendStage,
    StageDone,
    changed_experts,
    comes_in_s,
)
from coe.cluster.decisions.routing import BoxView
from coe.cluster.decisions.stage_rules import StageRules
from coe.core import Finding, Request, Result
from coe.scheduler.controller import Controller
from coe.scheduler.events import Arrived, Command, Event, Reply, RulesChanged
from coe.sim.agenda import Agenda, Arrival
from coe.sim.oracle import Oracle
from coe.sim.simulator import Simulator


@dataclass(frozen=True, slots=True)
class SimulatedNetwork:
    """A message takes `latency_s`; an image also its bytes on the link of its box, one image after another.

    A box reports its experts at most once in `gossip_s`. `heartbeat_s` after a box has died the head knows of it. The
    source of the images is no limit: a line has many cameras.
    """

    latency_s: float = 0.0002
    bytes_per_s: float = 1.25e9
    image_bytes: int = 500_000
    gossip_s: float = GOSSIP_S
    heartbeat_s: float = 1.0

    @property
    def move_s(self) -> float:
        """The time in which an image is on a box whose link is idle."""
        return self.latency_s + self.image_bytes / self.bytes_per_s


MakeBox = Callable[[Agenda, StageRules, Oracle, "BoxWatcher"], Simulator]
"""Makes the box of some rules, with pools that are still empty."""


@dataclass(slots=True)
class _Box:
    simulator: Simulator
    link_free_s: float = 0.0
    images: dict[int, float] = field(default_factory=dict)
    """By request: when its image is there."""
    unreported: dict[str, None] = field(default_factory=dict)
    """Experts that must be reported to the head."""


class BoxWatcher:
    """Sees what a box does, and passes on its replies and the experts that come and go."""

    def __init__(self, cluster: ClusterSimulator, box: str) -> None:
        self._cluster, self._box = cluster, box

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Take in one step of the box."""
        self._cluster.changed(self._box, changed_experts(event, commands))
        for command in commands:
            if isinstance(command, Reply):
                self._cluster.replied(self._box, command.result)


class _StageOracle:
    """Gives the findings of the images behind stages."""

    def __init__(self, oracle: Oracle, images: Mapping[int, Request]) -> None:
        self._oracle, self._images = oracle, images

    def find(self, request: Request, expert: str) -> Finding:
        """Return the finding for the image of a stage."""
        return self._oracle.find(self._images[request.id], expert)


class ClusterSimulator:
    """A head and its boxes. `rules_of(placement, box, also)` makes the rules of a box, `answered` is told every result.

    Boxes begin with the experts that fit, as in the paper's initialization phase; a box that joins begins empty.
    """

    def __init__(
        self,
        head: ClusterHead,
        network: SimulatedNetwork,
        oracle: Oracle,
        rules_of: Callable[[ExpertPlacement, str, frozenset[str]], StageRules],
        placement: ExpertPlacement,
        answered: Callable[[Result, float], None] = lambda result, now: None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.head, self.network = head, network
        self.images_sent = self.stages_sent = 0
        self.agenda = Agenda(clock)
        self.head_s = 0.0
        """The time of the head's decisions, by `clock`."""
        self._rules_of, self._placement, self._answered = rules_of, placement, answered
        self._images: dict[int, Request] = {}
        """By stage id: the request of its image."""
        self._requests: dict[int, Request] = {}
        self._oracle = _StageOracle(oracle, self._images)
        self._boxes: dict[str, _Box] = {}

    def __repr__(self) -> str:
        return f"<ClusterSimulator at {self.agenda.now:.3f} s, {len(self._boxes)} boxes, {self.head!r}>"

    def open(self, box: str, make: MakeBox) -> Simulator:
        """Add a box, and let it fill its pools."""
        rules = self._rules_of(self._placement, box, frozenset())
        simulator = make(self.agenda, rules, self._oracle, BoxWatcher(self, box))
        self._boxes[box] = _Box(simulator)
        simulator.start()
        return simulator

    def lose_at(self, when_s: float, box: str, replace: Callable[[], ExpertPlacement]) -> None:
        """Let a box die; once the head knows, `replace` gives the placement without it."""

        def lose() -> None:
            self._boxes[box].simulator.lose()
            self.agenda.at(self.agenda.now + self.network.heartbeat_s, notice)

        def notice() -> None:
            self._tell_head(BoxLost(box))
            self._move(replace())

        self.agenda.at(when_s, lose)

    def join_at(self, when_s: float, view: BoxView, make: MakeBox, replace: Callable[[], ExpertPlacement]) -> None:
        """Let a box join, with the placement that `replace` gives then."""

        def join() -> None:
            self._placement = replace()
            self._tell_head(BoxJoined(view))
            self.open(view.id, make)
            self._tell_head(ExpertsMoved(self._placement))

        self.agenda.at(when_s, join)

    def run(self, arrivals: Iterable[Arrival]) -> None:
        """Go on until every image is answered and nothing is left to do."""
        self.agenda.run(arrivals, self._arrive)

    def check(self) -> None:
        """Prove all books when nothing is left to do; raises AssertionError."""
        self.head.check(idle=True)
        assert not self._requests, f"{len(self._requests)} images without an answer"
        for id, box in self._boxes.items():
            if not box.simulator.is_lost:
                box.simulator.controller.check(idle=True)
                assert not box.images, f"{id} keeps {len(box.images)} images"

    # The head

    def _arrive(self, request: Request) -> None:
        self._requests[request.id] = request
        self._tell_head(Arrived(request))

    def _move(self, placement: ExpertPlacement) -> None:
        self._placement = placement
        self._tell_head(ExpertsMoved(placement))

    def _tell_head(self, event: HeadEvent) -> None:
        now = self.agenda.now
        began = self.agenda.clock()
        orders = self.head.handle(event, now)
        self.head_s += self.agenda.clock() - began
        for order in orders:
            match order:
                case SendStage():
                    self._send(order)
                case Reply():
                    del self._requests[order.result.request.id]
                    self._answered(order.result, now)
                case Release():
                    self._boxes[order.box].images.pop(order.request_id)
                case GiveRules():
                    self._give_rules(order)

    # The way to a box

    def _send(self, order: SendStage) -> None:
        box, now = self._boxes[order.box], self.agenda.now
        self.stages_sent += 1
        self._images[order.request.id] = self._requests[order.request_id]
        if order.with_image:
            assert order.request_id not in box.images, f"{order.box} gets the image of {order.request_id} twice"
            self.images_sent += 1
            box.link_free_s = max(now, box.link_free_s) + self.network.image_bytes / self.network.bytes_per_s
            box.images[order.request_id] = box.link_free_s + self.network.latency_s
        there_s = max(now + self.network.latency_s, box.images[order.request_id])
        self.agenda.at(there_s, lambda: box.simulator.take(Arrived(order.request)))

    def _give_rules(self, order: GiveRules) -> None:
        box = self._boxes[order.box]
        controller = box.simulator.controller
        rules = self._rules_of(self._placement, order.box, order.also)
        costs, plan = controller.costs.stated, controller.plan
        event = RulesChanged(rules.router, rules.graph, costs, plan, {}, rules.router.followers())
        self.agenda.at(self.agenda.now + self.network.latency_s, lambda: box.simulator.take(event))

    # The way back

    def replied(self, id: str, result: Result) -> None:
        """Send the result of a stage to the head."""
        self._images.pop(result.request.id, None)
        finding = result.findings[0] if result.findings else None
        done = StageDone(result.request.id, None if result.failure else finding, result.failure)
        self.agenda.at(self.agenda.now + self.network.latency_s, lambda: self._tell_head(done))

    def changed(self, id: str, experts: Iterable[str]) -> None:
        """Tell the head of experts that come or go, together with others that do so soon."""
        box = self._boxes[id]
        quiet = not box.unreported
        box.unreported.update(dict.fromkeys(experts))
        if quiet and box.unreported:
            self.agenda.at(self.agenda.now + self.network.gossip_s, lambda: self._gossip(id))

    def _gossip(self, id: str) -> None:
        box = self._boxes[id]
        if box.simulator.is_lost:
            return
        controller: Controller = box.simulator.controller
        reported = ExpertsReported(id, comes_in_s(controller, box.unreported))
        box.unreported.clear()
        self.agenda.at(self.agenda.now + self.network.latency_s, lambda: self._tell_head(reported))
