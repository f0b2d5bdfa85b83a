"""What the pictures that came tell of those that come next, and what is written down of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import board, line_of

from coe.board.parts_list import PlacedPart
from coe.core import Request
from coe.scheduler import demand
from coe.scheduler.demand import Demand
from coe.scheduler.foresight import LATE_PARTS, LearnedOrder, LineForesight
from coe.scheduler.history import HistoryWatcher, ImageView

RULES = board({"A": 5, "B": 3, "C": 3}, {"a": "x"})


def parts_of(components):
    return [PlacedPart(component, f"P{index}") for index, component in enumerate(components)]


class Line:
    def __init__(self, components=""):
        self.changed = []
        self.foresight = LineForesight(RULES.router, self.changed.append, {"": parts_of(components)})
        self._images = 0

    def see(self, components, serial="S1", at=0):
        """Let the parts from number `at` on come; '-' stands for a part without an image."""
        for index, component in enumerate(components, at):
            if component != "-":
                self.see_one(component, f"P{index}", serial)

    def see_one(self, component, refdes, serial="S1"):
        request = Request(self._images, component, serial=serial, refdes=refdes)
        self.foresight.arrived(ImageView(request, self._images, float(self._images)))
        self._images += 1

    def places(self):
        return {expert: self.foresight.next_place(expert) for expert in "abcx"}


def test_a_parts_list_tells_the_next_places_and_a_part_that_is_left_out_is_expected_for_a_while():
    line = Line("ABBC")
    assert line.places() == {"a": 0, "b": 1, "c": 3, "x": 0}
    line.changed.clear()
    line.see("A")
    assert line.changed == ["a", "x"], "its own experts alone"
    assert line.places() == {"a": 4, "b": 1, "c": 3, "x": 4}
    line.see("BB", at=1)
    assert line.places() == {"a": 4, "b": 5, "c": 3, "x": 4}
    assert [line.foresight.images_until(expert) for expert in "abcx"] == [2, 3, 1, 2]
    assert line.foresight.in_order() == ["c", "a", "x", "b"]
    line = Line("ACB" + "A" * 100)
    line.see("A-B" + "A" * (LATE_PARTS - 2))
    assert line.places()["c"] == 1
    assert line.foresight.images_until("c") == 1
    line.see("A", at=LATE_PARTS + 1)
    assert line.places()["c"] == 103 + 1


def test_a_board_that_ends_early_is_passed_over_and_without_serials_an_early_part_begins_the_next():
    for shown, head in (([("AB", "S1"), ("ABBC", "S2")], 8), ([("ABBCA-", ""), ("A", "")], 5)):
        line = Line("ABBC")
        for components, serial in shown:
            line.see(components, serial)
        assert line.foresight.head == head


def test_parts_may_come_in_another_order_and_what_is_not_on_the_list_says_nothing():
    line = Line("ABCA")
    line.see("CA", at=2)
    assert line.places() == {"a": 0, "b": 1, "c": 6, "x": 0}
    line.see("AB")
    assert line.places() == {"a": 4, "b": 5, "c": 6, "x": 4}
    assert line.foresight.head == 4
    line = Line("ABBC")
    line.see("A")
    before = line.places()
    line.see_one("C", "Q99")
    line.see_one("C", "")
    assert line.places() == before


def test_the_pace_is_that_of_the_images_and_serials_that_come_again_are_other_boards():
    for times_s in (
        [float(image) for image in range(40)],
        [4.0 * (image // 4) for image in range(40)],
        [image + (600.0 if image >= 20 else 0.0) for image in range(40)],
    ):
        foresight = LineForesight(RULES.router, parts={"": parts_of("ABC" * 60)})
        for image, at_s in enumerate(times_s):
            foresight.arrived(ImageView(Request(image, "A", serial="S1", refdes=f"P{image}"), image, at_s))
        assert foresight.head + 9 <= foresight.horizon() <= foresight.head + 11
    # As numbers of three carriers that go round.
    for line in (Line("ABC" * 60), Line()):
        for turn in range(7):
            line.see("ABC" * 60, f"carrier {turn % 3}")
        line.see("A", "carrier 1")
        assert line.foresight.images_until("b") == 1
        assert line.foresight.head % 180 == 1


def test_another_product_is_foreseen_no_more_and_much_later_parts_are_the_same_board():
    line = Line("A" * 50 + "B" * 50)
    line.see("C" * 40)
    assert not line.foresight.foresees()
    assert line.places() == dict.fromkeys("abcx")
    line.see("A", serial="S2")
    assert line.places()["b"] == line.foresight.head + 49
    # Two boards whose parts come up to 20 places early or late differ by more than that.
    chance, line, components = random.Random(1), Line(), "ABC" * 100
    for serial in ("S1", "S2", "S3"):
        for index in sorted(range(300), key=lambda index: index + chance.uniform(-20, 20)):
            line.see_one(components[index], f"P{index}", serial)
    assert line.foresight.head == 600


def test_the_order_is_learned_from_the_board_before_of_which_images_may_come_late():
    line = Line()
    line.see("ABBC")
    assert not line.foresight.foresees()
    line.see("A", serial="S2")
    assert line.foresight.head == 1
    assert line.places() == {"a": 4, "b": 1, "c": 3, "x": 4}
    line.see("BBC", serial="S2", at=1)
    assert line.places() == {"a": 4, "b": 5, "c": 7, "x": 4}
    line = Line()
    line.see("ABB-")
    line.see("A", serial="S2")
    places = line.places()
    line.see("C", at=3)
    assert line.places() == places
    line.see("BB", serial="S2", at=1)
    assert line.foresight.head == 3


def test_a_learned_order_survives_parts_that_are_left_out_and_exchanged():
    chance, order, learned = random.Random(7), LearnedOrder(), parts_of("ABC" * 60)
    for _ in range(6):
        here = [part for part in learned if chance.random() > 0.02]
        turns = {part: index + chance.uniform(-20, 20) for index, part in enumerate(here)}
        for part in sorted(here, key=turns.__getitem__):
            exchanged = chance.random() < 0.05
            order.saw(PlacedPart("C" if exchanged else part.component, part.refdes))
        known = order.finish()
    right = {part.refdes: (part.component, index) for index, part in enumerate(learned)}
    assert len(known) == len(learned)
    assert sum(right[part.refdes][0] == part.component for part in known) >= 0.98 * len(learned)
    assert sum(abs(right[part.refdes][1] - index) for index, part in enumerate(known)) < 10 * len(learned)


def test_where_the_last_boards_differ_the_next_may_have_either_and_an_exception_is_forgotten():
    line = Line()
    for serial, components in (("S1", "BBBB"), ("S2", "BCBB"), ("S3", "B")):
        line.see(components, serial)
    # P1 was B, then C.
    assert line.places() == {"a": None, "b": 5, "c": 5, "x": None}
    for number, rest, places in ((3, "CBB", {"b": 10, "c": 9}), (4, "BBB", {"c": 13}), (5, "CBB", {"b": 18, "c": 17})):
        line.see(rest, f"S{number}", at=1)
        line.see("B", f"S{number + 1}")
        assert {expert: line.places()[expert] for expert in places} == places
    line = Line()
    for serial, components in (("S1", "BBBB"), ("S2", "BCBB"), ("S3", "BBBB")):
        line.see(components, serial=serial)
    line.see("B", serial="S4")
    assert line.places()["c"] is None


def test_parts_that_come_no_more_are_forgotten_as_is_another_product_and_names_without_end():
    order = LearnedOrder()
    for named in ("ABC", "AB-", "AB-"):
        for part, component in zip(parts_of(named), named, strict=True):
            if component != "-":
                order.saw(part)
        assert len(order.finish()) == 3
    for part in parts_of("AB"):
        order.saw(part)
    assert [part.refdes for part in order.finish()] == ["P0", "P1"]
    for part in parts_of("CCA"):
        order.saw(part)
    assert [part.component for part in order.finish()] == ["C", "C", "A"]
    order = LearnedOrder()
    for number in range(50_010):
        order.saw(PlacedPart("A", f"image {number}.png"))
    assert len(order) == 50_000
    order.saw(PlacedPart("B", "image 7.png"))
    assert order.finish()[7].component == "B"


@given(st.text("ABC", min_size=1, max_size=12), st.integers(1, 4), st.data())
def test_in_order_the_places_are_those_of_the_list(components, boards, data):
    line, all_parts = Line(components), components * (boards + 1)
    seen = data.draw(st.integers(0, len(components) * boards))
    for place in range(seen):
        lap, index = divmod(place, len(components))
        line.see_one(components[index], f"P{index}", f"S{lap}")
    for expert in "abcx":
        wanted = all_parts.find({"x": "A"}.get(expert, expert.upper()), seen)
        assert line.foresight.next_place(expert) == (None if wanted < 0 else wanted)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 12), st.sampled_from(["", "S1", "S2", "S3"]))))
def test_whatever_comes_the_books_hold(images):
    for line in (Line("ABCAB"), Line()):
        for component, index, serial in images:
            line.see_one(component, f"P{index}" if index < 10 else "", serial)
            for expert in line.foresight.in_order():
                place, until = line.foresight.next_place(expert), line.foresight.images_until(expert)
                assert place is not None
                assert until == max(1, place + 1 - line.foresight.head)


def test_boards_of_a_panel_come_part_by_part_and_no_form_of_serials_costs_more():
    """Ten boards whose images take turns have the same places, and cost no more than boards one after another."""
    for line, begins in ((Line("ABC" * 20), 120), (Line(), 69)):
        for panel in range(3):
            line.changed.clear()
            for index in range(60):
                for serial in range(10):
                    line.see("ABC"[index % 3], f"S{panel}-{serial}", at=index)
        assert line.foresight.head == begins + 60
        assert line.foresight.in_order() == ["a", "x", "b", "c"]
        assert len(line.changed) < 2 * 60 * 10
    line = Line("ABC" * 100)
    line.changed.clear()
    for image in range(600):
        line.see("ABC"[image % 3], f"S{image}", at=image % 300)
    assert len(line.changed) < 20 * 600


class Diary(HistoryWatcher):
    def __init__(self):
        self.lines = []

    def arrived(self, image):
        self.lines.append(f"{image.request.refdes} came to place {image.place} at {image.arrived_s:g} s")

    def found(self, image, finding):
        labels = [f"{each.expert}={each.label}" for each in image.findings.values()]
        assert image.findings[finding.expert] is finding
        self.lines.append(f"{image.request.refdes}: {', '.join(labels)}")

    def answered(self, image):
        self.lines.append(f"{image.request.refdes} answered")


def test_a_watcher_is_told_of_each_image_and_finding():
    line = line_of(board({"A": 5}, {"a": "x"}), 30, workspace=8, strategy="late-binding")
    history, diary = line.controller.history, Diary()
    history.watch(diary)
    line.arrive(10.0, "A", serial="S1", refdes="R1")
    line.arrive(10.1, "none such", serial="S1", refdes="R2")
    line.arrive(12.5, "A", serial="S1", refdes="R3")
    line.reject(12.6, "A", "not a picture")
    line.run()
    assert diary.lines == [
        *("R1 came to place 0 at 10 s", "R2 came to place 1 at 10.1 s", "R2 answered"),
        *("R1: a=ok", "R1: a=ok, x=ok", "R1 answered"),
        *("R3 came to place 2 at 12.5 s", "R3: a=ok", "R3: a=ok, x=ok", "R3 answered"),
    ]
    assert (history.images, dict(history.under_way)) == (3, {})


SHARES = {"a": 0.9, "b": 0.1, "c": 0.5}


def usage_after(images):
    counted, chance = Demand(dict.fromkeys(SHARES, 0.5), {name: {} for name in SHARES}), random.Random(0)
    for _ in range(images):
        counted.arrived()
        for name, share in SHARES.items():
            if chance.random() < share:
                counted.opened(name)
                counted.closed(name)
    counted.check(idle=True)
    return {name: counted.usage(name) for name in SHARES}


def test_weights_stay_finite_for_years_and_usage_comes_near_the_share_of_images(monkeypatch):
    counted = Demand({"a": 0.5}, {"a": {}})
    for _ in range(200_000):
        counted.arrived()
    assert 0 <= counted.usage("a") < 1e-6
    assert counted._weight <= 2 * demand._REBASE
    expected = usage_after(3000)
    monkeypatch.setattr(demand, "_REBASE", 1.5)
    assert usage_after(3000) == pytest.approx(expected, rel=1e-9)
    assert usage_after(20_000) == pytest.approx(SHARES, abs=0.15)
