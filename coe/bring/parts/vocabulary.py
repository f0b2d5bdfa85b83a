"""What CAD programs and placement machines call the columns of a placement file, and their words for sides and units.

The words lie in vocabulary.yaml, for all programs together: files are renamed, merged and half translated on their way.
So do those by which files say that a part is not fitted, which is found out of rows here.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from coe.board.parts_list import Side
from coe.bring.parts.text_table import fault
from coe.errors import list_few
from coe.helpers.strict_yaml import word_lists


class Units(StrEnum):
    """The unit of a file's coordinates."""

    MM = "mm"
    UM = "um"
    MIL = "mil"
    INCH = "inch"

    @property
    def mm(self) -> float:
        """The length of one unit in mm."""
        return {Units.MM: 1.0, Units.UM: 0.001, Units.MIL: 0.0254, Units.INCH: 25.4}[self]


UNIT_BEHIND = r"(?:[\s_/={<-]|,\s*|(?<=\b[xy]))(mm|мм|[uµμ]m|mils?|inch|град|deg|(?<=\b[xy][ _/])in)[}>]?"
"""A unit behind the name of a column, as in X_mm, X/mm, Xmm and X in."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return the name of a column as it is compared: without case, accents, unit and signs between its words.

    Example: `plain("Center-X(mm)")` is "center x".
    """
    letters = "".join(sign for sign in unicodedata.normalize("NFKD", name) if not unicodedata.combining(sign))
    letters = " ".join(letters.split())  # a search at each of many blanks would take long
    bare = re.sub(rf"\s*[(\[](?![xy][)\]])[^)\]]*[)\]]?|(?<=.){UNIT_BEHIND}$", "", letters.casefold())
    return " ".join(re.split(r"[\s_./:;*#?\u00b0\u00ba-]+", bare)).strip()


def one_word(name: str) -> str:
    """Return the name of a column as one word: Mount Side and MountSide are one name."""
    return plain(name).replace(" ", "")


_WORDS = word_lists(__file__)
FITTED = (*_WORDS["fitted"], *(f"{verb} {name}" for verb in ("is", "to be") for name in _WORDS["fitted"]))
LEFT_OUT = (*_WORDS["left_out"], *(f"is {name}" for name in _WORDS["left_out"]))
"""The columns that say whether a part is there, and those that say whether it is not."""
HOW = tuple(_WORDS["how"])
"""Those of FITTED that may say how a part is mounted instead."""
_NAMES = {field: tuple(name.replace("@", field) for name in names) for field, names in _WORDS["columns"].items()}
_INSTEAD, _BOM = (tuple(_WORDS["instead_of_value"]), _WORDS["bom"])
_OF_ALL: Mapping[str, tuple[str, ...]] = {"fitted": FITTED, "left_out": LEFT_OUT, "quantity": tuple(_WORDS["quantity"])}
COLUMNS: Mapping[str, tuple[str, ...]] = {**_NAMES, "value": (*_NAMES["value"], *_INSTEAD), **_OF_ALL}
"""The names of columns by field, the best first."""
BOM_TEXTS = tuple(_BOM["texts"])
BOM_LAST_VALUES = frozenset(one_word(name) for name in (*_BOM["makers"][1:], *BOM_TEXTS))
"""What is the value of a part in a BOM where nothing else is, as `one_word` has it."""
BOM_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "refdes": (*_BOM["refdes"], *(name for name in _NAMES["refdes"] if name not in _BOM["not_refdes"]), "part"),
    "value": (*_NAMES["value"], *_BOM["value"], *_INSTEAD, *_BOM["makers"], *BOM_TEXTS),
    "package": (*_NAMES["package"][:-2], "case package"),
    "config": ("config",),
    **_OF_ALL,
}
"""The names of the columns of a BOM."""
MIRRORED: tuple[str, ...] = tuple(_WORDS["mirrored"])
"""The columns that say of a part whether it lies on the bottom side."""
MIRRORS = {word: Side(side) for side, words in _WORDS["mirrors"].items() for word in words}
SIDES = {word: Side(side) for side, words in _WORDS["sides"].items() for word in words}
NEEDS = ("refdes", "x", "y", "rotation")
"""The fields of which a placement file may lack none."""
ENDINGS = {".mnt": Side.TOP, ".mnb": Side.BOTTOM}
"""What the name of a file that Eagle writes ends with; it has no header."""
UNIT_WORDS = {word: Units(unit) for unit, words in _WORDS["units"].items() for word in words}
"""The words that files have for units."""


# Whether the parts of rows are fitted


_NO, _YES, _OUT = (tuple(_WORDS[name]) for name in ("no", "yes", "out"))
_PLACED = (*_WORDS["fitted"], "ok", "load", "execute", "no skip")
_NOTHING = ("", "-", "--", "~", "n/a", "none")
_SAID = re.compile("|".join([rf"\b(?:{'|'.join(_WORDS['said'])})\b", *_WORDS["said_in_signs"]]), re.IGNORECASE)
_SAID_ALONE = re.compile("|".join([_SAID.pattern, *_WORDS["said_alone"]]), re.IGNORECASE)
_MARK = re.compile(
    r"(?:(?i:n\.?/?[cp]\.?)|NA)(?:\s*[(/\uff08].*|\s+\d.*)?|\d\S*(?:\s*[(/\uff08]\s*|\s+)(?i:nc)[)\uff09]?"
)
"""What as a value may say that a part is not there, as NC, NP, or NA(10k) of Olimex; 10uF NP is no such word."""
_VALUED = re.compile(r"(?:.*[/_-])?(?:R|R[NAPV]|C|L|FB|D|LED|Q|T|U|IC|F|Z|ZD|VR|TVS|Y)\d", re.IGNORECASE)
"""Parts of which NC is no value, as it is of a switch, nor a name, as of a connector or of a net at a test point."""
_NC = re.compile(r"n[./]?c\.?", re.IGNORECASE)
_OF_NETS = re.compile(r"net|pin|pad|signal|type|part|mpn|package|footprint", re.IGNORECASE)
"""Columns in which NC may be a name, or a code."""
_NONE = re.compile(r"\s*0+(?:[.,]0+)?(?![\d.,])")  # A quantity, as 0 pcs
_MOST_TOLD = 3


class Row(NamedTuple):
    """A row of a table: its line, its cells by field, all its cells, and its text.

    `cells` is empty if the line cannot be divided into the header's columns.
    """

    number: int
    cells: dict[str, str]
    all_cells: Sequence[str]
    text: str = ""


_OPEN_WORD = "in a column such as Fitted or DNP means neither yes nor no; write yes or no"
_OPEN_MARK = (
    "may say that a part is not fitted; write DNP instead, or yes or no in a column DNP of this file, or of the BOM or "
    "placement file beside it"
)


class FittedQuestion(NamedTuple):
    """A row of which nobody knows whether its parts are fitted: its file and line, its word, and what is wrong."""

    path: Path
    line: int
    word: str
    what: str


def expect_answered(asked: Iterable[FittedQuestion]) -> None:
    """Raise ConfigError that names all rows that do not say whether their parts are fitted, if there are any."""
    if questions := [*dict.fromkeys(asked)]:
        first, word = questions[0], json.dumps(questions[0].word, ensure_ascii=False)
        way = f"to answer for later files, too, write `not_fitted: [{word}]` or `fitted: [{word}]` in answers.yaml"
        raise fault(first.path, [question.line for question in questions], f"{first.what}; {way}")


@dataclass(frozen=True, slots=True)
class Fitting:
    """What the rows of a file say of whether their parts are fitted, by line; all others are, for all that is known.

    `said` are rows that say in a column for it that their parts are fitted. `asked` is what is wrong with rows of which
    nobody knows; `notes` are sentences on words that are no answer.
    """

    left_out: frozenset[int]
    said: frozenset[int]
    asked: Mapping[int, FittedQuestion]
    notes: tuple[str, ...]


def fitting_of(
    path: Path,
    rows: Sequence[Row],
    names: Sequence[str],
    columns: Mapping[str, int],
    answered: Callable[[str], bool | None],
) -> Fitting:
    """Return what rows say, below the `names` of all their columns, of which `columns` are those of fields.

    `answered` tells what a person has said of an open word; None if nothing.
    """
    out = {row.number for row in rows if _is_left_out(row)}
    values = [value for row in rows if (value := row.cells.get("value"))]
    are_values = 2 * sum(_MARK.fullmatch(value) is not None for value in values) < len(values)
    taken = {index for field, index in columns.items() if field != "package"}  # which may be a description
    open_to_nc = {index for index, name in enumerate(names) if index not in taken and not _OF_NETS.search(name)}
    said, asked, other, blank = set[int](), dict[int, FittedQuestion](), dict[str, None](), list[int]()
    words = {_word(row.cells.get("fitted", "")) for row in rows}
    column = columns.get("fitted")
    says_no = {word for word in words if word in (*_NO, *_OUT) or says_so(word)}
    says_yes = any(map(_is_answer, words - says_no))
    wants_answers = says_yes or (column is not None and names[column].casefold().strip(" ?") not in HOW)
    for number, cells, all_cells, _ in rows:
        if number in out:
            continue
        fitted, left_out, value = (cells.get(field, "") for field in ("fitted", "left_out", "value"))
        open_word, marks = "", list[str]()
        if _word(left_out) not in (*_NOTHING, *_NO, *_PLACED, "f"):
            open_word = left_out
        elif _word(fitted) not in _NOTHING and not _is_answer(_word(fitted)):
            if wants_answers or _MARK.fullmatch(fitted):
                open_word = fitted
            else:
                other[fitted] = None
        elif {_word(fitted), _word(left_out)} - {*_NOTHING}:
            said.add(number)
        elif _VALUED.match(cells.get("refdes", "")):  # the NC of a part that has no such value or name
            remarks = (cell for at, cell in enumerate(all_cells) if at in open_to_nc)
            marks = [*([value] if are_values and _MARK.fullmatch(value) else ()), *filter(_NC.fullmatch, remarks)]
        word = open_word or "".join(marks[:1])
        if word and (is_fitted := answered(word)) is not None:
            (said if is_fitted else out).add(number)
        elif word:
            asked[number] = FittedQuestion(path, number, word, f"'{word}' {_OPEN_MARK if marks else _OPEN_WORD}")
        if not _word(fitted) and any(map(str.isdigit, cells.get("refdes", ""))):
            blank.append(number)
    notes = {
        "words in a column such as Fitted that leave no part out": [f"'{word}'" for word in other],
        "parts without a word in a column such as Fitted, where others have one, count as fitted": [
            f"line {number}" for number in blank if says_yes and not says_no
        ],
    }
    told = tuple(f"{what}: {list_few(few, _MOST_TOLD)}" for what, few in notes.items() if few)
    return Fitting(frozenset(out), frozenset(said), asked, told)


def _word(cell: str) -> str:
    """Return a word as it is compared: yes and YES* are one."""
    return cell.casefold().rstrip(".*! ") or cell.casefold()


def _is_answer(fitted: str) -> bool:
    """Tell whether a word in a column as Fitted says yes or no: as such, as a number, or by how such a word begins."""
    is_short = any(name.startswith(fitted) for name in _PLACED) and not any(
        name.startswith(fitted) for name in (*_OUT, *_WORDS["left_out"])
    )
    known = (*_YES, *_NO, *_OUT, *_PLACED)
    is_other = fitted.startswith("altern")  # as a variant of Altium calls a part in the place of another
    return bool(fitted) and (fitted in known or is_short or is_other or bool(re.fullmatch(r"\d+(?:[.,]0+)?", fitted)))


def _is_left_out(row: Row) -> bool:
    """Tell whether a row leaves its part out: by its cells by field, or by one of all its cells, which says only so."""
    fitted, left_out, value, config, quantity = (
        row.cells.get(field, "") for field in ("fitted", "left_out", "value", "config", "quantity")
    )
    return (
        _NONE.match(quantity) is not None
        or _word(left_out) in (*_YES, *_OUT)
        or _word(fitted) in (*_NO, *_OUT)
        or any(map(says_so, (fitted, left_out, value, config)))
        or any(says_so(cell, alone=True) for cell in row.all_cells)
    )


def says_so(text: str, *, alone: bool = False) -> bool:
    """Tell whether a text says that a part is not fitted; if `alone`, it must say nothing else."""
    return bool(_SAID_ALONE.fullmatch(text) if alone else _SAID.search(text))
