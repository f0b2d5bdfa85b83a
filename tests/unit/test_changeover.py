"""Several boards on one line, and a change of boards while it runs, as timetables."""

import math
from collections import Counter, namedtuple
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, board, cost, joined, line_of, log_of, stopping
from thorough import THOROUGH

from coe.board.parts_list import PlacedPart
from coe.core import FailureKind, Finding, Verdict
from coe.errors import BoardsClash
from coe.inspector.precision import VariantChoice, apply_choice
from coe.scheduler.events import Reply
from coe.scheduler.foresight import AWAY_IMAGES
from coe.scheduler.plan import PoolSpec
from coe.testing import VirtualLine, pools_of

A = board({"R": 2, "C": 1})
B = board({"R": 1, "D": 1})
"""Boards A and B inspect component R with experts of one name and different weights."""


def line_for(*boards, capacity=60, **options):
    """A line that knows the costs of all experts of A and B, and begins with some of these boards."""
    known = {"A": A, "B": B}
    costs = {f"{key}/{name}": cost() for key, rules in known.items() for name in rules.experts}
    return line_of(joined({key: known[key] for key in boards}), capacity, costs=costs, **options)


def test_two_boards_of_one_serial_use_one_name_with_rules_components_and_due_times_of_their_own():
    line = line_for("A", "B", findings={(1, "B/r"): "bad"})
    line.arrive(5.0, "R", board="A", serial="S1")
    line.arrive(5.0, "R", board="B", serial="S1")
    line.run()
    verdicts = {id: result.verdict for id, result in line.results.items()}
    assert verdicts == {0: Verdict.OK, 1: Verdict.NG}
    # Results show the names of the board files.
    found = [(result.request.board, result.findings[0].expert) for result in line.results.values()]
    assert found == [("A", "r"), ("B", "r")]
    line = line_for("A", "B")
    line.arrive(5.0, "C", board="B")
    line.run()
    failure = line.results[0].failure
    assert (failure.kind, "'B/C'" in failure.reason) == (FailureKind.RULES, True)
    line = line_for("A", "B", strategy="late-binding")
    line.arrive(5.0, "R", board="A", serial="S1", due_s=5.1)
    line.arrive(5.0, "R", board="B", serial="S1", due_s=50.0)
    line.run()
    assert [line.results[id].late for id in (0, 1)] == [True, False]
    assert [what for _, what in line.log if what.startswith("late")] == ["late S1"]


def test_boards_share_an_expert_in_memory_and_its_likelihood_but_not_in_a_circle():
    rules = joined({"A": A, "B": B}, shared={"r"})
    line = line_of(rules, 60)
    line.arrive(8.9, "R", board="A")
    line.arrive(9.0, "R", board="A")
    line.arrive(9.0, "R", board="B")
    line.run()
    assert sorted(rules.experts) == ["A/c", "B/d", "r"]
    assert [what for _, what in log_of(line, after=9.1)] == ["cpu0 run r x2"]
    graph = joined({"A": A, "B": B}, shared={"r"}).graph
    assert {id: round(graph.probability(id), 9) for id in graph.experts} == {"r": 0.6, "A/c": 0.2, "B/d": 0.2}
    first, second = board({"X": 1}, {"x": "y"}), board({"Y": 1}, {"y": "x"})
    with pytest.raises(BoardsClash, match="share experts"):
        joined({"A": first, "B": second}, shared={"x", "y"})


def test_a_changeover_while_images_are_under_way():
    """The pool holds two experts. The image of A that runs is finished; then A's experts leave, and B's come."""
    line = line_for("A", capacity=24)
    line.arrive(5.0, "R", board="A")
    line.change(5.1, joined({"A": A, "B": B}, ending={"A"}), parts={"A": (), "B": ()})
    line.arrive(5.2, "D", board="B")
    line.change(5.6, joined({"B": B}), parts={"B": ()})
    line.run()
    assert log_of(line, without="-") == [
        (0.0, "cpu0 load A/r"),
        (1.0, "cpu0 load A/c"),
        (5.0, "cpu0 run A/r x1"),
        (5.2, "cpu0 evict A/c"),
        (5.2, "cpu0 load B/d"),
        (5.3, "reply 0 OK"),
        (5.6, "cpu0 evict A/r"),
        (6.2, "cpu0 run B/d x1"),
        (6.2, "cpu0 load B/r"),
        (6.5, "reply 1 OK"),
    ]


def test_an_expert_that_is_being_loaded_leaves_when_it_has_come_unless_it_comes_back():
    line = line_for("A", capacity=24)
    line.change(0.5, joined({"B": B}), parts={"B": ()})
    line.run()
    log = [(0.0, "cpu0 load A/r"), (1.0, "cpu0 evict A/r"), (1.0, "cpu0 load B/d"), (2.0, "cpu0 load B/r")]
    assert log_of(line) == log
    line = line_for("A", capacity=24)
    line.change(0.5, joined({"B": B}), parts={"B": ()})
    line.change(0.6, joined({"A": A}), parts={"A": ()})
    line.arrive(2.0, "R", board="A")
    line.run()
    assert log_of(line) == [(0.0, "cpu0 load A/r"), (1.0, "cpu0 load A/c"), (2.0, "cpu0 run A/r x1")]


def test_pools_make_room_for_images_that_take_more_memory():
    """Images of B take 20 bytes, and the pool has left 4 to them: experts of A leave before B's first image comes."""
    costs = {"A/r": cost(), "A/c": cost(), "B/r": cost(activation_bytes=20), "B/d": cost()}
    line = line_of(joined({"A": A}), 40, costs=costs, workspace=4)
    (pool,) = line.controller.plan.pools
    wider = replace(line.controller.plan, pools=(replace(pool, workspace_bytes=20),))
    line.change(5.0, joined({"A": A, "B": B}), parts={"A": (), "B": ()}, plan=wider)
    line.arrive(6.0, "R", board="B")
    line.run()
    assert line.results[0].verdict is Verdict.OK
    assert line.controller.pools[pool.id].spec == PoolSpec(pool.id, "cpu", 40, 20)


def test_pools_that_get_smaller_let_experts_leave_before_anything_else_comes():
    """B's experts have a body, which the device keeps for good: the pool has 12 bytes less from then on."""
    line = line_for("A", capacity=36)
    (pool,) = line.controller.plan.pools
    smaller = replace(line.controller.plan, pools=(replace(pool, capacity_bytes=24),))
    line.change(5.0, joined({"A": A, "B": B}), parts={"A": (), "B": ()}, plan=smaller)
    line.arrive(6.0, "R", board="B")
    line.run()
    assert line.results[0].verdict is Verdict.OK
    book = line.controller.pools[pool.id]
    assert (book.spec.capacity_bytes, book.reserved_bytes <= 24) == (24, True)


def test_rules_that_requests_under_way_need_cannot_go():
    line = line_for("A")
    line.arrive(5.0, "R", board="A")
    line.change(5.1, joined({"B": B}), parts={"B": ()})
    with pytest.raises(ValueError, match="A/r"):
        line.run()


def test_each_board_says_whether_it_stops_at_ng():
    """Both boards inspect U with expert u, which leads to x and y; only A looks no further once an image is NG."""
    fan = board({"U": 1}, {"u": "[x, y]"})
    rules = joined({"A": stopping(fan), "B": fan}, shared={"u", "x", "y"})
    line = line_of(rules, 24, findings={(number, "x"): "bad" for number in (0, 1)})
    line.arrive(9.0, "U", board="A")
    line.arrive(9.0, "U", board="B")
    line.run()
    found = {id: [finding.expert for finding in result.findings] for id, result in line.results.items()}
    assert [line.results[id].verdict for id in (0, 1)] == [Verdict.NG, Verdict.NG]
    assert found == {0: ["u", "x"], 1: ["u", "x", "y"]}


def test_a_second_look_has_the_name_of_the_board_file():
    choice = VariantChoice({"A/r": "q8", "A/c": "fp32", "B/r": "fp32", "B/d": "fp32"}, {"A/r": 0.5})
    rules = apply_choice(joined({"A": A, "B": B}), choice)
    doubtful = Finding("A/r", "q8", "ok", 1.0, margin=0.1)
    line = line_of(rules, 80, findings={(0, "A/r"): doubtful})
    line.arrive(5.0, "R", board="A")
    line.arrive(5.0, "R", board="B")
    line.run()
    found = {id: [finding.expert for finding in result.findings] for id, result in line.results.items()}
    assert found == {0: ["r", "r@fp32"], 1: ["r"]}


def test_an_image_that_has_waited_for_long_goes_first_whatever_board_it_is_of():
    """The pool holds one expert. The image of B becomes old while images of A keep coming."""
    waits = []
    for max_wait_s in (3.0, 600.0):
        line = line_for("A", "B", capacity=14, strategy="late-binding", max_wait_s=max_wait_s)
        line.arrive(2.0, "D", board="B")
        for number in range(40):
            line.arrive(2.0 + 0.25 * number, "R", board="A")
        line.run()
        waits.append(line.results[0].latency_s)
    assert waits[0] <= min(waits[1], 5.0)


def parts_of(components):
    return tuple(PlacedPart(component, f"P{number}") for number, component in enumerate(components))


def test_images_of_two_boards_in_turn_do_not_spoil_each_others_order():
    """Boards of A and B pass side by side, each a second time: what comes next is known for both."""
    a, b = board({"R": 1, "C": 1, "D": 1}), board({"R": 1, "C": 1, "D": 1})
    line = line_of(joined({"A": a, "B": b}), 80, strategy="late-binding")
    for turn, serial in enumerate(("1", "2")):
        for number, (of_a, of_b) in enumerate(zip("RCD", "DCR", strict=True)):
            at_s = 10.0 + 3 * turn + number
            line.arrive(at_s, of_a, board="A", serial=f"A{serial}", refdes=f"P{number}")
            line.arrive(at_s + 0.5, of_b, board="B", serial=f"B{serial}", refdes=f"P{number}")
    line.run()
    foresight = line.controller.world.foresight
    places = {expert: foresight.images_until(expert) for expert in sorted(line.board.experts)}
    # Both boards are over: the first part of the next comes first.
    assert places == {"A/r": 1, "A/c": 2, "A/d": 3, "B/d": 1, "B/c": 2, "B/r": 3}


def test_each_board_has_a_parts_list_of_its_own_and_keeps_it_through_a_changeover():
    parts = {"A": parts_of("RC"), "B": parts_of("DR")}
    line = line_for("A", strategy="late-binding", parts={"A": parts["A"]})
    line.change(3.0, joined({"A": A, "B": B}), parts=parts)
    line.arrive(5.0, "R", board="A", serial="1", refdes="P0")
    line.run()
    foresight = line.controller.world.foresight
    places = {id: foresight.next_place(id) for id in line.controller.graph.experts}
    assert places == {"A/r": 2, "A/c": 1, "B/d": 0, "B/r": 1}


def test_nothing_is_foreseen_for_a_board_whose_images_stay_away():
    parts = {"A": parts_of("RC"), "B": parts_of("DR")}
    line = line_for("A", "B", strategy="late-binding", parts=parts)
    foresight = line.controller.world.foresight
    for number in range(AWAY_IMAGES):
        line.arrive(5.0 + number, "RC"[number % 2], board="A", serial=str(number // 2), refdes=f"P{number % 2}")
    line.run()
    assert (foresight.next_place("B/d"), foresight.images_until("A/r")) == (None, 1)
    line.arrive(60.0, "D", board="B", serial="1", refdes="P0")
    line.run(start=False)
    assert (foresight.images_until("B/r"), foresight.images_until("B/d")) == (1, 2)


BOARDS = {
    "A": board({"R": 4, "C": 1, "U": 1}, {"u": "[r, x]"}),
    "B": board({"R": 1, "D": 2}, {"r": "x"}),
    "C": board({"C": 3, "U": 1}, {"c": "u", "u": "x"}),
}
"""Three boards that use the same names for components and experts."""
COSTS = {"r": cost(), "c": cost(weights_bytes=14), "u": cost(activation_bytes=3), "d": cost(load_s=2.0), "x": cost()}
SHARED = ("x",)
"""The expert that is the same on all boards; others of one name differ."""


Image = namedtuple("Image", "at_s decoded_s board component")
"""When the line accepted an image, how long it was decoded, its board and component."""


class Plot(namedtuple("Plot", "images changes first salt")):
    """What happens on a line: images, and the boards from given times on."""

    def label(self, number, expert):
        """Whatever the line does, an expert says the same of the same image."""
        return "bad" if (self.salt + 7 * number + 3 * ord(expert)) % 5 == 0 else "ok"


class ChangingLine(VirtualLine):
    """A line that lets go of a board once the last image that it accepted of it has its result."""

    def begin(self, plot):
        self.boards, self.left, self._of = plot.first, Counter(), {}
        for number, image in enumerate(plot.images):
            # Physical boards of up to four parts, some of them due.
            due_s = image.at_s + (math.inf, 3.0)[number // 4 % 2]
            where = {"board": image.board, "serial": f"S{number // 4}", "refdes": image.component}
            self._of[self.arrive(image.at_s + image.decoded_s, image.component, due_s=due_s, **where)] = image
            self._simulator._when(image.at_s, lambda key=image.board: self.left.update([key]))
        for at_s, boards in plot.changes:
            self._simulator._when(at_s, lambda boards=boards: self._turn_to(boards))

    def observe(self, event, commands, now, control_s=0.0):
        """Count the images of each board that have their result."""
        super().observe(event, commands, now, control_s)
        for command in commands:
            if isinstance(command, Reply):
                key = self._of[command.result.request.id].board
                self.left[key] -= 1
                if not self.left[key] and key not in self.boards:
                    self._turn_to(self.boards)

    def _turn_to(self, boards):
        self.boards = boards
        ending = [key for key, images in self.left.items() if images and key not in boards]
        rules = joined({key: BOARDS[key] for key in [*boards, *ending]}, SHARED, ending=ending)
        self.change(self.now, rules, parts=dict.fromkeys([*boards, *ending], ()))


@st.composite
def plots(draw):
    first = boards = draw(st.sampled_from([["A"], ["B", "C"], ["C"]]))
    now, images, changes = 0.0, [], []
    for _ in range(draw(st.integers(1, 30))):
        now += draw(st.sampled_from([0.0, 0.1, 0.5, 3.0]))
        if draw(st.integers(0, 4)):
            key = draw(st.sampled_from(boards))
            component = draw(st.sampled_from(sorted(BOARDS[key].components)))
            images.append(Image(now, draw(st.sampled_from([0.01, 0.05, 1.0])), key, component))
        else:
            boards = draw(st.sampled_from([["A"], ["B"], ["C"], ["A", "B"], ["C", "A"], ["A", "B", "C"]]))
            changes.append((now, boards))
    return Plot(images, changes, first, draw(st.integers(0, 4)))


def line_of_plot(plot, strategy, capacity, executors):
    ids = {id: COSTS[id[-1]] for id in joined(BOARDS, SHARED).experts}
    said = {(number, id): plot.label(number, id[-1]) for number in range(len(plot.images)) for id in ids}
    rules = joined({key: BOARDS[key] for key in plot.first}, SHARED)
    return ChangingLine(rules, ids, pools_of(executors, capacity, 4), strategy=strategy, findings=said, evict_s=0.01)


def alone(plot):
    for key, rules in BOARDS.items():
        numbers = [number for number, image in enumerate(plot.images) if image.board == key]
        said = {(at, e): plot.label(number, e) for at, number in enumerate(numbers) for e in rules.experts}
        line = VirtualLine(rules, {e: COSTS[e] for e in rules.experts}, pools_of(1, 200, 4), findings=said)
        ids = {line.arrive(0.0, plot.images[number].component): number for number in numbers}
        line.run()
        yield from ((ids[id], result) for id, result in line.results.items())


@given(plots(), st.sampled_from(ENGINE), st.sampled_from([20, 30, 60]), st.integers(1, 2))
@settings(max_examples=16 * THOROUGH, deadline=None)
def test_boards_may_come_and_go_at_any_time(plot, strategy, capacity, executors):
    line = line_of_plot(plot, strategy, capacity, executors)
    line.begin(plot)
    line.run()  # its books are checked after each event, budgets too
    expected = dict(alone(plot))
    assert line.results.keys() == expected.keys()
    for id, result in line.results.items():
        assert (result.verdict, result.error) == (expected[id].verdict, None)
        assert result.findings == expected[id].findings
    known = joined({key: BOARDS[key] for key in line.boards}, SHARED).experts
    resident = {expert for pool in line.controller.pools.values() for expert in pool.by_arrival()}
    assert resident <= set(known)
