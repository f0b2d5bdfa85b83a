"""Which box takes a stage: views in, a box out."""

from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from coe.cluster.box import BoxWorker
from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.routing import BoxView, ReplicaRouting, StagePrice
from coe.cluster.decisions.stage_rules import StageRequest
from coe.cluster.messages import CarriedImage, Parcel, RunStage
from coe.pictures.image_source import ImageSource
from coe.testing import rules_from

PRICES = {expert: StagePrice(run_s=0.1, load_s=1.0) for expert in "abc"}


class Boxes:
    """Three boxes, and the choice among them."""

    def __init__(self, boxes, standby=None, *, move_s=0.0):
        self.placement = ExpertPlacement(boxes, standby or {}, {}, {})
        self.views = {name: BoxView(name, PRICES) for name in ("one", "two", "three")}
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


def test_a_stage_goes_where_its_expert_is_and_home_where_it_is_nowhere():
    assert Boxes({"a": ("one",)}, {"a": "two"}).choose("a") == "one"
    chosen = Boxes({"a": ("one",)}, {"a": "two"})
    chosen.views["two"].reported({"a": 0.0})
    assert chosen.choose("a") == "two"


def test_of_replicas_that_which_would_be_done_first_takes_the_stage_and_a_slow_one_fewer():
    chosen = Boxes({"a": ("one", "two", "three")})
    for view in chosen.views.values():
        view.reported({"a": 0.0})
    assert chosen.taken("a", 6) == ["one", "two", "three"] * 2
    # Its stages take 0.4 s, those of the other box 0.1 s; both have all experts.
    chosen = Boxes({"a": ("one", "two")})
    chosen.views["one"].reported({"a": 0.0}, pace=4.0)
    chosen.views["two"].reported({"a": 0.0})
    assert chosen.taken("a", 5) == ["two", "two", "two", "one", "two"]


def test_the_standby_takes_what_it_has_done_sooner_and_none_whose_expert_others_wait_for_at_home():
    """The home has two loads ahead: done after 3.1 s, there after 1.1 s, and a load more makes 2.1 s."""
    chosen = Boxes(dict.fromkeys("abc", ("one",)), {"a": "two"})
    chosen.views["one"].sent("b")
    assert chosen.choose("a") == "one"
    chosen.views["one"].sent("c")
    assert chosen.choose("a") == "two"
    # The home has three loads ahead; the standby, with none, would load the expert once more.
    chosen = Boxes(dict.fromkeys("abc", ("one",)), {"a": "two"})
    for expert in "bca":
        chosen.views["one"].sent(expert)
    assert chosen.views["one"].loads_s == 3.0
    assert chosen.choose("a") == "one"


def test_an_image_stays_where_it_is_if_the_way_takes_longer_than_the_wait():
    chosen = Boxes({"a": ("one", "two")}, move_s=0.15)
    for view in chosen.views.values():
        view.reported({"a": 0.0})
    chosen.views["two"].sent("a")
    assert chosen.choose("a", {"two"}) == "two"
    chosen.views["two"].sent("a")
    assert chosen.choose("a", {"two"}) == "one"


def test_a_lost_box_and_one_to_avoid_are_passed_over():
    chosen = Boxes({"a": ("one", "two")}, {"b": "three"})
    del chosen.views["one"]
    assert chosen.choose("a") == "two"
    assert chosen.choose("a", (), {"two"}) is None
    assert chosen.choose("b") == "three"
    assert chosen.choose("c") is None


def test_the_books_of_a_view_go_back_to_nothing():
    view = BoxView("one", PRICES)
    view.sent("a")
    view.sent("a")
    view.sent("b")
    assert (view.loads_s, round(view.work_s, 9)) == (2.0, 0.3)
    view.reported({"a": 0.0, "c": 0.25})
    assert view.loads_s == 1.0
    for expert in "aab":
        view.answered(expert)
    assert (view.loads_s, view.work_s, view.waiting) == (0.0, 0.0, {})


# A box keeps to the times of the head, although its clock began at another moment and parcels may be slow


RULES = rules_from(
    """
board: box
experts: {a: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}}
components: {A: {count: 1, inspect: a}}
"""
)


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
    assembly = SimpleNamespace(rules=RULES, boards=())
    box, engine = BoxWorker("box1", assembly, lambda shared: [image for _ in shared]), Engine()
    box._engine = engine
    for number, (sent_s, engine.now_s) in enumerate([(10.0, 110.5), (20.0, 120.0), (30.0, 150.0)]):
        stage = StageRequest(number, "a", due_s=sent_s + 5, submitted_s=sent_s - 1)
        box.take(Parcel(number, sent_s, (RunStage(stage, number, object()),)))
    # The head's 20 s are 120 s here, because no parcel can come before it was sent.
    assert [request.due_s for request in engine.got] == pytest.approx([115.5, 125.0, 135.0])
    assert [request.submitted_s for request in engine.got] == pytest.approx([109.5, 119.0, 129.0])
