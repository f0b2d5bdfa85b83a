"""The head of a cluster: who gets which stage, and what it decides when boxes come and go."""

import math
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import board
from thorough import THOROUGH

from coe.board.union import Member, union
from coe.cluster.box import BoxWorker
from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds, ExpertPlacement
from coe.cluster.decisions.head import ClusterHead
from coe.cluster.decisions.head_events import (
    BoxJoined,
    BoxLost,
    ExpertsMoved,
    ExpertsReported,
    GiveRules,
    Release,
    SendStage,
    StageDone,
)
from coe.cluster.decisions.place_experts import place_experts
from coe.cluster.decisions.routing import BoxView, ReplicaRouting, StagePrice
from coe.cluster.decisions.stage_rules import StageRequest, stage_rules
from coe.cluster.messages import CarriedImage, Parcel, RunStage
from coe.core import Failure, FailureKind, Finding, Request, Stage, Verdict
from coe.pictures.image_source import ImageSource
from coe.scheduler.cases import Cases
from coe.scheduler.deadlines import Deadlines
from coe.scheduler.events import Arrived, Reply, Stopped
from coe.scheduler.failures import STOPPED

RULES = board({"A": 5, "B": 3}, {"a": "[x, y]", "b": "x"})
PRICES = {expert: StagePrice(0.1, 1.0) for expert in RULES.experts}
NEEDS = [ExpertNeeds(expert, 10, {"": 0.1}, 0.1, 1.0) for expert in RULES.experts]
LOAD = Failure(FailureKind.LOAD, "the disk is broken")


def homes_on(boxes, before=None):
    return place_experts(NEEDS, [BoxBudget(box, 20) for box in boxes], before=before)


class Boxes:
    """Boxes that answer when they are told to, and what the head ordered; each of `images` has arrived."""

    def __init__(self, placement, images=""):
        placement = homes_on(placement) if isinstance(placement, list) else placement
        self.alive = list(placement.held)
        self.placement = placement
        self.head = ClusterHead(
            RULES.router, ReplicaRouting(0.0), placement, [BoxView(box, PRICES) for box in self.alive]
        )
        self.open = {}
        self.answers = []
        self.images = Counter()
        self.here = set()
        self.come(images)

    def come(self, components, first=0):
        for number, component in enumerate(components, first):
            self.tell(Arrived(Request(number, component)))

    def results(self):
        return {answer.result.request.id: answer.result for answer in self.answers}

    def verdicts(self):
        return [answer.result.verdict for answer in self.answers]

    def tell(self, event):
        orders = self.head.handle(event, 0.0)
        for order in orders:
            match order:
                case SendStage():
                    place = (order.box, order.request_id)
                    assert (order.box in self.alive, order.with_image) == (True, place not in self.here)
                    self.images[place] += order.with_image
                    self.here.add(place)
                    self.open[order.request.id] = order
                case Reply():
                    self.answers.append(order)
                case Release():
                    self.here.remove((order.box, order.request_id))
        self.head.check()
        return orders

    def answer(self, stage_id, label="ok"):
        stage = self.open.pop(stage_id)
        return self.tell(StageDone(stage_id, Finding(stage.request.component, "fp32", label, 1.0)))

    def lose(self, box, *, crashed=False):
        self.alive.remove(box)
        lost = [id for id, stage in self.open.items() if stage.box == box]
        self.here = {place for place in self.here if place[0] != box}
        # First, so that stages which go to other boxes now stay.
        for id in lost:
            self.open.pop(id)
        self.tell(BoxLost(box, crashed=crashed))
        for id in lost:  # its answers may still come, and count nowhere
            assert self.tell(StageDone(id, Finding("a", "fp32", "bad", 1.0))) == []
        self.move()

    def move(self):
        if self.alive:
            self.placement = homes_on(self.alive, self.placement)
            self.tell(ExpertsMoved(self.placement))

    def finish(self):
        while self.open:
            self.answer(next(iter(self.open)))
        self.head.check(idle=True)


def test_a_box_gets_the_image_s_name_rules_before_stages_and_if_nobody_knows_it_is_lost_without_consequence():
    boxes = Boxes(["one"])
    boxes.tell(Arrived(Request(7, "A", "left.png")))
    boxes.tell(Arrived(Request(8, "B")))
    assert [stage.request.name for stage in boxes.open.values()] == ["left.png", "image 8"]
    boxes = Boxes(["one"])
    assert boxes.tell(BoxLost("two")) == []
    boxes.tell(Arrived(Request(0, "A")))
    with pytest.raises(AssertionError, match="at idle"):
        boxes.head.check(idle=True)
    boxes = Boxes(["one"], "B")
    assert boxes.tell(ExpertsMoved(boxes.placement)) == [GiveRules("one", frozenset({"b"}))], (
        "of stages under way there"
    )
    boxes.alive.append("two")
    boxes.tell(BoxJoined(BoxView("two", PRICES)))
    boxes.placement = homes_on(["one", "two"], boxes.placement)
    orders = boxes.tell(ExpertsMoved(boxes.placement))
    assert [order.box for order in orders if isinstance(order, GiveRules)] == ["one", "two"]


def test_stages_follow_each_other_over_boxes_and_the_image_comes_once():
    boxes = Boxes(["one", "two"])
    boxes.tell(Arrived(Request(7, "A")))
    (first,) = boxes.open.values()
    assert (first.request.component, first.with_image) == ("a", True)
    boxes.answer(first.request.id)
    assert {stage.request.component for stage in boxes.open.values()} == {"x", "y"}
    boxes.finish()
    assert [(a.result.verdict, [f.expert for f in a.result.findings]) for a in boxes.answers] == [
        (Verdict.OK, ["a", "x", "y"])
    ]
    assert max(boxes.images.values()) == 1
    assert not boxes.here


def test_on_a_box_two_boards_of_one_serial_are_due_by_themselves():
    both = union([Member(key, RULES, RULES.experts) for key in ("left", "right")])
    placement = homes_on(["one"])
    head = ClusterHead(both.router, ReplicaRouting(0.0), placement, [BoxView("one", PRICES)])
    cases = Cases(stage_rules(both.graph, both.router.followers(), placement, "one").router)
    dues = Deadlines(1e6, lambda dues, now: 1e6)
    for number, (key, due_s) in enumerate([("left", 10.0), ("right", 100.0)]):
        image = Request(number, "B", serial="SN1", due_s=due_s, board_key=key)
        (order,) = head.handle(Arrived(image), 0.0)
        assert isinstance(order, SendStage)
        assert cases.open(order.request, 0.0).stages == (Stage(number, "b"),)
        dues.arrived(order.request, 0.0)
    list(dues.changes(9.0))
    assert [dues.due_s(number) for number in range(2)] == [10.0, math.inf]


@pytest.mark.parametrize(("failure", "boxes_tried"), [(LOAD, 2), (Failure(FailureKind.IMAGE, "cut off"), 1)])
def test_a_stage_that_a_box_cannot_load_goes_to_another_and_a_picture_that_is_to_blame_is_tried_once(
    failure, boxes_tried
):
    boxes = Boxes(["one", "two"], "B")
    tried = set()
    while boxes.open:
        stage_id, stage = boxes.open.popitem()
        tried.add(stage.box)
        boxes.tell(StageDone(stage_id, None, failure))
    assert len(tried) == boxes_tried
    assert [answer.result.failure for answer in boxes.answers] == [failure]


def holder(boxes, request_id):
    return next((stage.box for stage in boxes.open.values() if stage.request_id == request_id), "")


def test_an_image_that_crashes_boxes_ends_two_of_them_and_costs_no_other_image_its_verdict():
    boxes = Boxes([f"box{number}" for number in range(6)], "B" * 40)
    crashes = []
    while boxes.open:
        if box := holder(boxes, 7):
            crashes.append(box)
            boxes.lose(box, crashed=True)
        else:
            boxes.answer(next(iter(boxes.open)))
    boxes.head.check(idle=True)
    assert len(crashes) == 2
    said = boxes.results()
    failure = said.pop(7).failure
    assert (failure.kind, all(box in failure.reason for box in crashes)) == (FailureKind.RUN, True)
    assert len(said) == 39
    assert {result.verdict for result in said.values()} == {Verdict.OK}


def test_suspects_go_to_a_box_one_at_a_time_and_a_machine_that_dies_makes_no_image_one():
    boxes = Boxes(["one", "two"], "BBBBBB")
    first = holder(boxes, 0)
    suspects = {stage.request_id for stage in boxes.open.values() if stage.box == first}
    boxes.lose(first, crashed=True)
    assert len([stage for stage in boxes.open.values() if stage.request_id in suspects]) == 1
    boxes.come("BBB", 6)
    assert all(holder(boxes, number) for number in range(6, 9))
    boxes.finish()
    assert boxes.verdicts() == [Verdict.OK] * 9
    boxes = Boxes(["one", "two", "three"], "BBBBBB")
    boxes.lose(holder(boxes, 0))
    assert {stage.request_id for stage in boxes.open.values()} == set(range(6))
    boxes.lose(holder(boxes, 0))
    boxes.finish()
    assert boxes.verdicts() == [Verdict.OK] * 6


def test_images_are_answered_after_two_lost_devices_without_any_box_and_without_a_home_for_an_expert():
    boxes, lost = Boxes(["one", "two", "three"]), Failure(FailureKind.DEVICE, "cuda:0 was lost")
    boxes.tell(Arrived(Request(0, "A")))
    tried = []
    while boxes.open:
        stage_id, stage = boxes.open.popitem()
        tried.append(stage.box)
        boxes.tell(StageDone(stage_id, None, lost))
        boxes.lose(stage.box, crashed=True)
    assert len(tried) == 2
    assert [answer.result.failure for answer in boxes.answers] == [lost]
    boxes = Boxes(["one"], "A")
    boxes.lose("one")
    boxes.tell(Arrived(Request(1, "A")))
    assert [answer.result.failure.kind for answer in boxes.answers] == [FailureKind.DEVICE] * 2
    boxes = Boxes(place_experts([need for need in NEEDS if need.expert != "b"], [BoxBudget("one", 20)]), "B")
    assert "'b'" in boxes.answers[0].result.error


@pytest.mark.parametrize("is_stopped", [False, True])
def test_stages_whose_boxes_are_all_lost_wait_for_other_homes_or_the_end(is_stopped):
    boxes = Boxes(["one", "two", "three"], "B")
    for box in boxes.placement.of("b"):
        boxes.alive.remove(box)
        boxes.open.clear()
        boxes.here.clear()
        boxes.tell(BoxLost(box))
    assert (boxes.open, boxes.answers) == ({}, [])
    if is_stopped:
        boxes.tell(Stopped())
        assert [answer.result.failure for answer in boxes.answers] == [STOPPED]
        return
    boxes.move()
    boxes.finish()
    assert boxes.verdicts() == [Verdict.OK]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("image"), st.sampled_from("ABZ")),
        st.tuples(st.just("answer"), st.integers(0, 10)),
        st.tuples(st.just("fail"), st.integers(0, 10)),
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.tuples(st.just("crash"), st.integers(0, 3)),
        st.tuples(st.just("join"), st.just(0)),
        st.tuples(st.just("told"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=40 * THOROUGH, deadline=None)
def test_every_image_has_exactly_one_answer_and_comes_to_a_box_once(steps):
    boxes, images, names = Boxes(["one", "two", "three"]), 0, 3
    for what, which in steps:
        if what == "image":
            boxes.tell(Arrived(Request(images, str(which))))
            images += 1
        elif what in ("answer", "fail") and boxes.open:
            stage_id = sorted(boxes.open)[int(which) % len(boxes.open)]
            if what == "answer":
                boxes.answer(stage_id, "ok" if int(which) % 3 else "bad")
            else:
                boxes.open.pop(stage_id)
                boxes.tell(StageDone(stage_id, None, LOAD))
        elif what in ("lose", "crash") and boxes.alive:
            boxes.lose(boxes.alive[int(which) % len(boxes.alive)], crashed=what == "crash")
        elif what == "join":
            names += 1
            boxes.alive.append(f"box{names}")
            boxes.tell(BoxJoined(BoxView(f"box{names}", PRICES)))
            boxes.move()
        elif what == "told" and boxes.alive:
            box = boxes.alive[int(which) % len(boxes.alive)]
            boxes.tell(ExpertsReported(box, {"a": 0.0, "x": float(which)}))
    boxes.finish()
    assert sorted(answer.result.request.id for answer in boxes.answers) == list(range(images))


def test_once_it_is_stopped_no_stage_is_sent_and_each_image_is_answered_suspects_too():
    boxes = Boxes(["one", "two"], "AAA")
    assert boxes.tell(Stopped()) == []
    assert boxes.tell(Arrived(Request(3, "A")))[-1:] == [boxes.answers[0]]
    first, second, third = sorted(boxes.open)
    boxes.answer(first, "ok")  # its successors are not sent
    boxes.answer(second, "bad")  # it has its verdict
    boxes.open.pop(third)
    boxes.tell(StageDone(third, None, STOPPED))  # as a stopped box says; no other box gets it
    boxes.head.check(idle=True)
    said = boxes.results()
    assert [said[number].failure for number in range(4)] == [STOPPED, None, STOPPED, STOPPED]
    assert said[1].verdict is Verdict.NG
    boxes = Boxes(["one", "two"], "BBBBBB")
    boxes.lose(holder(boxes, 0), crashed=True)
    held_back = [number for number in range(6) if not holder(boxes, number)]
    assert held_back
    boxes.tell(Stopped())
    assert {number: result.failure for number, result in boxes.results().items()} == dict.fromkeys(held_back, STOPPED)


PRICES_ROUTING = {expert: StagePrice(run_s=0.1, load_s=1.0) for expert in "abc"}


class Choice:
    """Three boxes, and the choice among them."""

    def __init__(self, boxes, standby=None, *, move_s=0.0):
        self.placement = ExpertPlacement(boxes, standby or {}, {}, {})
        self.views = {name: BoxView(name, PRICES_ROUTING) for name in ("one", "two", "three")}
        self.routing = ReplicaRouting(move_s)

    def choose(self, expert, holding=(), avoid=()):
        return self.routing.choose(expert, self.views, self.placement, holding, avoid)

    def taken(self, expert, times):
        """Return the boxes that take so many stages, one after the other."""
        boxes = []
        for _ in range(times):
            boxes.append(box := self.choose(expert))
            self.views[box or ""].sent(expert)
        return boxes


def test_a_stage_goes_where_its_expert_or_image_is_else_home_and_passes_over_what_is_lost_or_to_avoid():
    assert Choice({"a": ("one",)}, {"a": "two"}).choose("a") == "one"
    chosen = Choice({"a": ("one",)}, {"a": "two"})
    chosen.views["two"].reported({"a": 0.0})
    assert chosen.choose("a") == "two"
    chosen = Choice({"a": ("one", "two")}, move_s=0.15)
    for view in chosen.views.values():
        view.reported({"a": 0.0})
    chosen.views["two"].sent("a")
    assert chosen.choose("a", {"two"}) == "two"
    chosen.views["two"].sent("a")
    assert chosen.choose("a", {"two"}) == "one"
    chosen = Choice({"a": ("one", "two")}, {"b": "three"})
    del chosen.views["one"]
    assert chosen.choose("a") == "two"
    assert chosen.choose("a", (), {"two"}) is None
    assert chosen.choose("b") == "three"
    assert chosen.choose("c") is None


def test_of_replicas_that_which_would_be_done_first_takes_the_stage_and_books_go_back_to_nothing():
    chosen = Choice({"a": ("one", "two", "three")})
    for view in chosen.views.values():
        view.reported({"a": 0.0})
    assert chosen.taken("a", 6) == ["one", "two", "three"] * 2
    # Its stages take 0.4 s, those of the other box 0.1 s; both have all experts.
    chosen = Choice({"a": ("one", "two")})
    chosen.views["one"].reported({"a": 0.0}, pace=4.0)
    chosen.views["two"].reported({"a": 0.0})
    assert chosen.taken("a", 5) == ["two", "two", "two", "one", "two"]
    view = BoxView("one", PRICES_ROUTING)
    view.sent("a")
    view.sent("a")
    view.sent("b")
    assert (view.loads_s, round(view.work_s, 9)) == (2.0, 0.3)
    view.reported({"a": 0.0, "c": 0.25})
    assert view.loads_s == 1.0
    for expert in "aab":
        view.answered(expert)
    assert (view.loads_s, view.work_s, view.waiting) == (0.0, 0.0, {})


def test_the_standby_takes_what_it_has_done_sooner_and_none_whose_expert_others_wait_for_at_home():
    """The home has two loads ahead: done after 3.1 s, there after 1.1 s, and a load more makes 2.1 s."""
    chosen = Choice(dict.fromkeys("abc", ("one",)), {"a": "two"})
    chosen.views["one"].sent("b")
    assert chosen.choose("a") == "one"
    chosen.views["one"].sent("c")
    assert chosen.choose("a") == "two"
    # The home has three loads ahead; the standby, with none, would load the expert once more.
    chosen = Choice(dict.fromkeys("abc", ("one",)), {"a": "two"})
    for expert in "bca":
        chosen.views["one"].sent(expert)
    assert chosen.views["one"].loads_s == 3.0
    assert chosen.choose("a") == "one"


class Engine:
    """An engine whose clock is set, and that keeps what it gets."""

    def __init__(self):
        self.now_s = 0.0
        self.got = []

    def now(self):
        return self.now_s

    def submit(self, request, source, first=None):
        self.got.append(request)
        return Future()


def test_a_parcel_that_was_long_on_its_way_postpones_no_due_time():
    """A box that was stopped for 20 s must not believe that its images came, and are due, 20 s later."""
    image = CarriedImage(ImageSource.of(np.zeros((8, 8, 3), np.uint8), "BGR"), "A")
    assembly = SimpleNamespace(rules=board({"A": 1}), boards=())
    box, engine = BoxWorker("box1", assembly, lambda shared: [image for _ in shared]), Engine()
    box._engine = engine
    for number, (sent_s, engine.now_s) in enumerate([(10.0, 110.5), (20.0, 120.0), (30.0, 150.0)]):
        stage = StageRequest(number, "a", due_s=sent_s + 5, submitted_s=sent_s - 1)
        box.take(Parcel(number, sent_s, (RunStage(stage, number, object()),)))
    # The head's 20 s are 120 s here, because no parcel can come before it was sent.
    assert [request.due_s for request in engine.got] == pytest.approx([115.5, 125.0, 135.0])
    assert [request.submitted_s for request in engine.got] == pytest.approx([109.5, 119.0, 129.0])
