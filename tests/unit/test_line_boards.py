"""Which boards of a line take images, which only finish theirs, and under which names the line knows them."""

from pathlib import Path

import pytest

from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError
from coe.inspector.asked_boards import AskedBoard, asked_boards
from coe.inspector.line_boards import LineBoard, LineBoards, Names, Register
from coe.scheduler.costs import CostTable
from coe.scheduler.events import RulesChanged
from coe.scheduler.plan import Plan
from coe.store.manifest import Manifest
from coe.testing import rules_from

BOARD = """
board: {name}
experts:
  joint: {{kind: k, labels: [ok, bad], input: 8, reject: [{reject}]{more}}}
components:
  R: {{count: 1, inspect: joint{then}}}
"""


def read(name, checksum="1", *, reject="bad", more="", then=""):
    """A board with one expert, `joint`, whose weights have a checksum."""
    rules = rules_from(BOARD.format(name=name, reject=reject, more=more, then=then))
    weights = rules.experts["joint"].weights
    manifest = Manifest(
        id=weights, kind="k", labels=("ok", "bad"), input_size=8, file="w.safetensors", bytes=1, checksum=checksum
    )
    return LineBoard(AskedBoard(name.upper()), rules, {weights: manifest}, {}, {}, {"R": 192}, frozenset(), 1.0)


def joint(register, board):
    """The board's expert, as the line knows it."""
    return register.enrol(board, alone=False).member.experts["joint"]


@pytest.mark.parametrize(
    ("differs", "id"),
    [
        ({}, "joint"),
        ({"then": ", min_score: 0.5"}, "joint"),  # rules that a step states do not make another expert
        ({"checksum": "2"}, "b/joint"),
        ({"reject": "ok"}, "b/joint"),
        ({"more": ", temperature: 2"}, "b/joint"),
    ],
)
def test_equal_experts_of_one_name_are_one_expert(differs, id):
    register = Register("fp32")
    assert [joint(register, read("a")).id, joint(register, read("b", **differs)).id] == ["joint", id]


def test_names_mean_the_same_as_long_as_the_line_runs_and_versions_have_keys_of_their_own():
    register = Register("fp32")
    experts = [joint(register, read("a", checksum)) for checksum in ("1", "2", "3", "1")]
    assert [expert.id for expert in experts] == ["joint", "a/joint", "a/joint#2", "joint"]
    # Weights that were replaced have another name, and lie at the same place in the store.
    assert [expert.weights for expert in experts] == ["a/joint", "a/joint#2", "a/joint#3", "a/joint"]
    assert set(register.places.values()) == {"a/joint"}
    register = Register("fp32")
    boards = [register.enrol(read("a", checksum), alone=number == 0) for number, checksum in enumerate("1221")]
    assert [board.key for board in boards] == ["", "a", "a", ""]
    assert Names().of("x", "wished") == "wished"


class Line:
    """A line's boards, and the rules that were told."""

    def __init__(self, *boards):
        self.register, self.told = Register("fp32"), []
        self.boards = LineBoards([self._enrol(board) for board in boards], self.told.append)

    def _enrol(self, board):
        return self.register.enrol(board, alone=False)

    def switch(self, *boards):
        """Switch to boards; return the rules for now, and those for then."""
        now, then = (
            RulesChanged(board.rules.router, board.rules.graph, CostTable({}), Plan((), ()), {}, {})
            for board in (boards[0], boards[0])
        )
        self.boards.switch([self._enrol(board) for board in boards], now, then)
        return now, then


@pytest.mark.parametrize("images", [0, 1, 2])
def test_rules_stay_until_the_last_image_by_them_has_its_result(images):
    line = Line(read("a"))
    for number in range(images):
        line.boards.accept("a", number)
    now, then = line.switch(read("b"))
    for number in range(images):
        assert line.told == [now]
        line.boards.answered(number)
        if number + 1 < images:
            line.boards.answered(number)
    assert line.told == ([now, then] if images else [then])
    assert line.boards.accept("a", 9) is None


def test_a_new_version_takes_the_new_images_and_a_board_that_comes_back_keeps_its_own():
    line = Line(read("a"))
    old = line.boards.accept("a", 1)
    line.switch(read("a", "2"))
    assert (old.key, line.boards.accept("a", 2).key) == ("a", "a#2")
    line = Line(read("a"))
    line.boards.accept("a", 1)
    now, _ = line.switch(read("b"))
    _, then = line.switch(read("a"))
    assert line.told == [now, then]  # nothing of b is under way
    line.switch(read("b"))
    assert [board.name for board in line.boards.ending_after([])] == ["b", "a"]
    line.boards.answered(1)
    assert [board.name for board in line.boards.ending_after([])] == ["b"]


def test_boards_are_named_as_their_file_or_their_user_says_who_may_ask_for_several():
    line = Line(read("a"), read("b"))
    assert line.boards.named("a") is line.boards.named("A")
    with pytest.raises(ConfigError, match="board 'c' is not on this line; known: a, b"):
        line.boards.named("c")
    with pytest.raises(ConfigError, match="this line inspects several boards"):
        line.boards.named("")
    assert asked_boards("A") == (AskedBoard("A"),)
    assert asked_boards(["A", Path("b.yaml")]) == (AskedBoard("A"), AskedBoard(Path("b.yaml")))
    assert asked_boards({"A": 3, "B": 1}) == (AskedBoard("A", 3.0), AskedBoard("B", 1.0))
    parts = (PlacedPart("R", "R1"),)
    assert asked_boards("A", parts) == (AskedBoard("A", parts=parts),)
    assert asked_boards(["A", "B"], {"B": parts}) == (AskedBoard("A"), AskedBoard("B", parts=parts))


@pytest.mark.parametrize(
    ("board", "parts", "sentence"),
    [
        (7, None, "board=7: give the name of a board or the path of its file, a list of them, or a mapping"),
        ("", None, "board='': give the name"),
        ([], None, r"board=\[\]: give the name"),
        (["A", 5], None, "give the name"),
        (["A", "A"], None, "a board stands there twice"),
        ({"A": 0}, None, "board 'A' cannot have the mix 0; give a number above 0"),
        ({"A": "much"}, None, "board 'A' cannot have the mix 'much'"),
        (["A", "B"], [PlacedPart("R", "R1")], "the line has 2 boards; give a mapping from a board to its parts list"),
        (["A", "B"], {"C": "c.csv"}, "parts: 'C' is not a board of this line; known: A, B"),
        ("A", [], r"parts=\[\]: give the path of a parts list"),
        ("A", 5, "parts=5: give the path of a parts list"),
    ],
)
def test_what_makes_no_sense_is_refused(board, parts, sentence):
    with pytest.raises(ConfigError, match=sentence):
        asked_boards(board, parts)
