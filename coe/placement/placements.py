"""Placement files: where each part lies on a board. Dialect and units are asked for, and nothing is guessed.

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

from coe import plugins, text_table
from coe.errors import ConfigError
from coe.placement.dialects import GROUP, UNIT_WORDS, Dialect, Side, Units, resolve
from coe.text_table import TableHeader, TextLine

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
_FILLED = ("refdes", "x", "y", "rotation", "side")
"""The fields whose cells are never empty."""


def read_placements(path: Path, dialect: str, units: str) -> tuple[Placement, ...]:
    """Read a placement file: all its parts, of both sides, in the order of the file.

    `dialect` is the name of an entry point of `coe.dialects`, as kicad, or the dotted path of a `Dialect`; `units` is
    mm, mil or inch. Raises ConfigError, with file and line, for an unknown dialect or unit, a file that cannot be read
    or does not fit the dialect, coordinates that are no numbers, a part without a side, and a reference designator that
    stands twice.
    """
    return parse_placements(path, text_table.content(path, _NOUN), dialect, units)


def parse_placements(path: Path, raw: bytes, dialect: str, units: str) -> tuple[Placement, ...]:
    """Return the placements in a file's bytes; raises ConfigError as `read_placements` does, which names `path`."""
    form = resolve(dialect)
    if units not in set(Units):
        raise ConfigError(f"'{units}' is not a unit of placement files; give mm, mil or inch")
    reader = _PlacementReader(path, dialect, form, Units(units))
    return reader.placements(text_table.parse(path, raw, _NOUN, form.fallback))


class _PlacementReader:
    """Reads one file; knows it, its dialect and its unit for what it refuses."""

    def __init__(self, path: Path, name: str, dialect: Dialect, unit: Units) -> None:
        self._path, self._name, self._dialect, self._unit = path, name, dialect, unit

    def placements(self, lines: Sequence[TextLine]) -> tuple[Placement, ...]:
        if not lines:
            raise ConfigError(f"{self._path}: the placement file is empty; export it again")
        for line in lines:
            if stated := _STATED.match(line.text):
                self._expect_unit(line, stated[1])
        header = self._header(lines)
        first = header.line.number + 1 if self._dialect.header else 0
        by_refdes: dict[str, Placement] = {}
        for line in lines:
            if line.is_remark or line.number < first:
                continue
            place = self._placement(line, self._row(line, header))
            before = by_refdes.setdefault(place.refdes, place)
            if before is not place:
                raise self._error(line, f"'{place.refdes}' stands in line {before.line} already; take one line out")
        if not by_refdes:
            raise ConfigError(f"{self._path}: there is no part in the placement file; export it again")
        return tuple(by_refdes.values())

    def _header(self, lines: Sequence[TextLine]) -> TableHeader:
        """Find the header of a file; raises ConfigError if no line fits the dialect."""
        columns = self._dialect.columns
        if not self._dialect.header:
            return TableHeader(lines[0], None, tuple(columns), {field: at for at, field in enumerate(columns)})
        candidates = [line for line in lines if self._dialect.remark or not line.is_remark]
        header = text_table.find_header(candidates, columns, self._dialect.needs, units=True)
        if header is None:
            names = ", ".join(columns[field][0] for field in self._dialect.needs)
            raise ConfigError(
                f"{self._path}: no line is the header of a {self._name} placement file (columns {names}); export it "
                f"again, or name the dialect that the file has: {', '.join(plugins.names(GROUP))}"
            )
        bare = [text_table.UNIT.sub("", word) for word in header.words]
        if twice := [bare[index] for index in header.columns.values() if bare.count(bare[index]) > 1]:
            raise self._error(header.line, f"the column '{twice[0]}' is there twice; take one out")
        for axis in ("x", "y"):
            if stated := re.search(r"\(([a-z]+)\)$", header.words[header.columns[axis]]):
                self._expect_unit(header.line, stated[1])
        return header

    def _row(self, line: TextLine, header: TableHeader) -> dict[str, str]:
        """Return the cells of a line by field.

        A line with more cells than the header has a separator in a cell. Among cells between spaces a missing cell
        would move those after it, so there a line has as many.
        """
        given, width = line.cells(header.separator), len(header.words)
        if len(given) > width or (header.separator is None and len(given) < width):
            quote = "put a cell with separators or spaces in quotes"
            raise self._error(line, f"this line has {len(given)} cells where {width} belong; {quote}")
        row = {field: given[index] for field, index in header.columns.items() if index < len(given)}
        for field in self._dialect.needs:
            if field not in row or (field in _FILLED and not row[field]):
                raise self._error(line, f"this line has no {field}; complete it, or take it out")
        return row

    def _placement(self, line: TextLine, row: Mapping[str, str]) -> Placement:
        refdes = row["refdes"]
        x_mm, y_mm = (self._millimetres(line, f"{refdes}: {axis}", row[axis]) for axis in ("x", "y"))
        rotation, unit = self._number(line, f"{refdes}: rotation", row["rotation"])
        if unit.casefold() not in ("", "deg"):
            raise self._error(line, f"{refdes}: rotation '{row['rotation']}' is not in degrees")
        side = self._side(line, refdes, row.get("side"))
        words = {field: row.get(field, "") for field in ("package", "value", "component")}
        return Placement(refdes, x_mm, y_mm, rotation % 360.0, side, **words, line=line.number)

    def _side(self, line: TextLine, refdes: str, word: str | None) -> Side:
        sides, endings = self._dialect.sides, self._dialect.endings
        if word is None:
            if (ending := self._path.suffix.lower()) not in endings:
                known = " or ".join(f"{ending} ({side})" for ending, side in endings.items())
                raise ConfigError(
                    f"{self._path}: the name of the file tells the side in this dialect: let it end with {known}"
                )
            return endings[ending]
        if word.casefold() not in sides:
            raise self._error(line, f"{refdes}: '{word}' is not a side; known: {', '.join(sides)}")
        return sides[word.casefold()]

    def _millimetres(self, line: TextLine, what: str, text: str) -> float:
        number, unit = self._number(line, what, text)
        if unit:
            self._expect_unit(line, unit)
        length = number * self._unit.mm
        if abs(length) > FARTHEST_MM:
            raise self._error(line, f"{what} is {length / 1000:.3g} m away; are the units right?")
        return length

    def _number(self, line: TextLine, what: str, text: str) -> tuple[float, str]:
        """Return a number, and the word for its unit, which may be empty."""
        match = _NUMBER.fullmatch(text)
        if match is None or not isfinite(float(match[1])):
            raise self._error(line, f"{what} is '{text}', which is not a number; write it as 12.5")
        return float(match[1]), match[2]

    def _expect_unit(self, line: TextLine, word: str) -> None:
        if UNIT_WORDS.get(word.casefold()) is not self._unit:
            raise self._error(line, f"the file states '{word}' as its unit, and {self._unit} was asked for")

    def _error(self, line: TextLine, message: str) -> ConfigError:
        return ConfigError(f"{self._path}:{line.number}: {message}")
