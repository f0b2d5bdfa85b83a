"""Whatever a board file holds, it is read or refused with a RulesError; nothing else ever comes out."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from test_rules_errors import GOOD
from texts import texts

from coe.board import rules
from coe.board.rules import Rules
from coe.errors import RulesError

Write = Callable[[str | bytes], Path]


def load_or_complain(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    with suppress(RulesError):
        assert isinstance(rules.load(path), Rules)


def test_the_file_that_the_others_are_made_from_is_right(board_file: Write) -> None:
    assert rules.load(board_file(GOOD)).board == "demo"


@given(st.one_of(texts(60), st.text(alphabet="ab:-[]{}!&*'\"#|>%@,? \t\n\r\0", max_size=60)))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    load_or_complain(tmp_path / "board.yaml", text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    load_or_complain(tmp_path / "board.yaml", raw)


PIECES = [
    "",
    " ",
    "\t",
    "\0",
    "[",
    "{",
    "}",
    "*a",
    "&a ",
    "!!int ",
    "- ",
    ": ",
    "joint",
    "NG",
    "nan",
    "-1",
    "~",
    "\n",
    "'",
    "1e999",
]


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=4)
)
def test_a_good_file_with_random_damage_is_read_or_refused(tmp_path: Path, damage: list[tuple[int, int, str]]) -> None:
    text = GOOD
    for at, removed, piece in damage:
        text = text[:at] + piece + text[at + removed :]
    load_or_complain(tmp_path / "board.yaml", text.encode())


@given(st.data())
def test_a_good_file_with_words_that_changed_places_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    words = GOOD.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        one, two = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[one], words[two] = words[two], words[one]
    load_or_complain(tmp_path / "board.yaml", " ".join(words).encode())
