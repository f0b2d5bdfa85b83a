"""Placement files: where each part lies on a board. Law: dialect and units are asked for, and nothing is guessed.

A dialect is what one CAD program writes: the names of its columns, its words for the sides, where it states the units.
A file whose header does not fit the dialect, or that states other units than were asked for, is refused in a sentence.
Angles are degrees, counterclockwise, in all dialects. Coordinates become mm; the frame stays that of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from coe import text_table
from coe.errors import ConfigError, did_you_mean
from coe.placement.dialects import DIALECTS, UNIT_WORDS, Dialect, Side, Units
from coe.text_table import SEPARATORS, TextLine

FARTHEST_MM = 10_000.0
"""Coordinates beyond it are refused: no board is as large."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A part as a placement file has it: mm and degrees (counterclockwise) in the frame of the file.

    `package`, `value` and `component` are empty if the file has no such column. `line` is its line in the file.
    """

    refdes: str
    x_mm: float
    y_mm: float
    rotation_deg: float
    side: Side
    package: str = ""
    value: str = ""
    component: str = ""
    line: int = 0


_NOUN = "the placement file"
_STATED = re.compile(r"^[#\s]*units?(?:\s+used)?\s*[:=]\s*([a-z]+)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")


def read_placements(path: Path, dialect: str, units: str) -> tuple[Placement, ...]:
    """Read a placement file: all its parts, of both sides, in the order of the file.

    `dialect` is a name of `DIALECTS`, `units` one of mm, mil, inch. Raises ConfigError, with file and line, for an
    unknown dialect or unit, a file that cannot be read or does not fit the dialect, coordinates that are no numbers, a
    part without a side, and a reference designator that stands twice.
    """
    return parse_placements(path, text_table.content(path, _NOUN), dialect, units)


def parse_placements(path: Path, raw: bytes, dialect: str, units: str) -> tuple[Placement, ...]:
    """Return the placements in a file's bytes; raises ConfigError as `read_placements` does, which names `path`."""
    form, unit = _asked(dialect, units)
    lines = text_table.parse(path, raw, _NOUN, form.fallback)
    for line in lines:
        if stated := _STATED.match(line.text):
            _refuse_other(path, line, stated[1], unit)
    table = _table(path, dialect, form, lines)
    for word in table.units:
        _refuse_other(path, table.header, word, unit)
    by_refdes: dict[str, Placement] = {}
    for line in table.lines:
        place = _placement(path, line, form, unit, table.row(path, line, form))
        before = by_refdes.setdefault(place.refdes, place)
        if before is not place:
            raise ConfigError(
                f"{path}:{line.number}: '{place.refdes}' stands in line {before.line} already; take one line out"
            )
    if not by_refdes:
        raise ConfigError(f"{path}: there is no part in the placement file; export it again")
    return tuple(by_refdes.values())


@dataclass(frozen=True, slots=True)
class _Table:
    """The lines of parts of a file, and how to read them: the separator, and the index of each field's column.

    `width` is the number of columns. A line with more cells has a separator in a cell; among cells between spaces a
    missing cell would move those after it, so there a line has as many.

    `units` are those that its `header` states, as in "Center-X(mm)".
    """

    lines: tuple[TextLine, ...]
    columns: Mapping[str, int]
    width: int
    separator: str | None
    header: TextLine
    units: tuple[str, ...] = ()

    def row(self, path: Path, line: TextLine, form: Dialect) -> dict[str, str]:
        """Return the cells of a line by field; raises ConfigError if a field that is needed lacks or is empty."""
        given = line.cells(self.separator)
        if len(given) > self.width or (self.separator is None and len(given) < self.width):
            raise ConfigError(
                f"{path}:{line.number}: this line has {len(given)} cells where {self.width} belong; put a cell with "
                "separators or spaces in quotes"
            )
        row = {field: given[index] for field, index in self.columns.items() if index < len(given)}
        missing = [field for field in form.needs if field not in row or (field in _FILLED and not row[field])]
        if missing:
            raise ConfigError(f"{path}:{line.number}: this line has no {missing[0]}; complete it, or take it out")
        return row


_FILLED = ("refdes", "x", "y", "rotation", "side")
"""The fields whose cells are never empty."""


def _asked(dialect: str, units: str) -> tuple[Dialect, Units]:
    if dialect not in DIALECTS:
        raise ConfigError(f"'{dialect}' is not a dialect of placement files{did_you_mean(dialect, DIALECTS)}")
    if units not in set(Units):
        raise ConfigError(f"'{units}' is not a unit of placement files; give mm, mil or inch")
    return DIALECTS[dialect], Units(units)


def _refuse_other(path: Path, line: TextLine, word: str, asked: Units) -> None:
    """Raise ConfigError if a word of the file is another unit than was asked for."""
    if UNIT_WORDS.get(word.casefold()) is not asked:
        raise ConfigError(f"{path}:{line.number}: the file states '{word}' as its unit, and {asked} was asked for")


def _table(path: Path, dialect: str, form: Dialect, lines: Sequence[TextLine]) -> _Table:
    """Find the header of a file; raises ConfigError if no line fits the dialect."""
    if not lines:
        raise ConfigError(f"{path}: the placement file is empty; export it again")
    parts = tuple(line for line in lines if not line.is_remark)
    if not form.header:
        columns = {field: index for index, field in enumerate(form.columns)}
        return _Table(parts, columns, len(columns), None, lines[0])
    for line in lines:
        if line.is_remark and not form.remark:
            continue
        for separator in SEPARATORS:
            words = [cell.casefold() for cell in line.without_mark.cells(separator)]
            bare = [re.sub(r"\s*\(.*\)$", "", word) for word in words]
            # Of the names of a field the first that is there counts.
            columns = {
                field: bare.index(name) for field, names in form.columns.items() for name in names[::-1] if name in bare
            }
            if all(field in columns for field in form.needs):
                if twice := [bare[index] for index in columns.values() if bare.count(bare[index]) > 1]:
                    raise ConfigError(f"{path}:{line.number}: the column '{twice[0]}' is there twice; take one out")
                units = [re.search(r"\(([a-z]+)\)$", words[columns[field]]) for field in ("x", "y")]
                after = tuple(part for part in parts if part.number > line.number)
                return _Table(after, columns, len(words), separator, line, tuple(unit[1] for unit in units if unit))
    names = ", ".join(form.columns[field][0] for field in form.needs)
    raise ConfigError(
        f"{path}: no line is the header of a {dialect} placement file (columns {names}); export it again, or name the "
        f"dialect that the file has: {', '.join(DIALECTS)}"
    )


def _placement(path: Path, line: TextLine, form: Dialect, unit: Units, row: Mapping[str, str]) -> Placement:
    where = f"{path}:{line.number}: {row['refdes']}"
    x, y = (_millimetres(path, line, f"{where}: {axis}", row[axis], unit) for axis in ("x", "y"))
    rotation = _number(f"{where}: rotation", row["rotation"])
    if rotation.unit.casefold() not in ("", "deg"):
        raise ConfigError(f"{where}: rotation '{row['rotation']}' is not in degrees")
    return Placement(
        row["refdes"],
        x,
        y,
        rotation.value % 360.0,
        _side(path, where, form, row.get("side")),
        row.get("package", ""),
        row.get("value", ""),
        row.get("component", ""),
        line.number,
    )


def _side(path: Path, where: str, form: Dialect, word: str | None) -> Side:
    if word is None:
        if path.suffix.lower() not in form.endings:
            endings = " or ".join(f"{ending} ({side})" for ending, side in form.endings.items())
            raise ConfigError(f"{path}: the name of the file tells the side in this dialect: let it end with {endings}")
        return form.endings[path.suffix.lower()]
    if word.casefold() not in form.sides:
        raise ConfigError(f"{where}: '{word}' is not a side; known: {', '.join(form.sides)}")
    return form.sides[word.casefold()]


@dataclass(frozen=True, slots=True)
class _Number:
    value: float
    unit: str


def _number(what: str, text: str) -> _Number:
    match = _NUMBER.fullmatch(text)
    number = float(match[1]) if match else float("nan")
    if match is None or not isfinite(number):
        raise ConfigError(f"{what} is '{text}', which is not a number; write it as 12.5")
    return _Number(number, match[2])


def _millimetres(path: Path, line: TextLine, what: str, text: str, unit: Units) -> float:
    number = _number(what, text)
    if number.unit:
        _refuse_other(path, line, number.unit, unit)
    length = number.value * unit.mm
    if abs(length) > FARTHEST_MM:
        raise ConfigError(f"{what} is {length / 1000:.3g} m away; are the units right?")
    return length
