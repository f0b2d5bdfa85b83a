"""Placement files: where each part lies on a board. Law: dialect and units are asked for, and nothing is guessed.

A dialect is what one CAD program writes: the names of its columns, its words for the sides, where it states the units.
A file whose header does not fit the dialect, or that states other units than were asked for, is refused in a sentence.
Angles are degrees, counterclockwise, in all dialects. Coordinates become mm; the frame stays that of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from pathlib import Path

from coe.board import text_table
from coe.board.text_table import SEPARATORS, Line, cells
from coe.errors import ConfigError, did_you_mean

FARTHEST_MM = 10_000.0
"""Coordinates beyond it are refused: no board is as large."""


class Side(StrEnum):
    """A side of a board."""

    TOP = "top"
    BOTTOM = "bottom"


class Units(StrEnum):
    """The unit of a file's coordinates."""

    MM = "mm"
    MIL = "mil"
    INCH = "inch"

    @property
    def mm(self) -> float:
        """The length of one unit in mm."""
        return {Units.MM: 1.0, Units.MIL: 0.0254, Units.INCH: 25.4}[self]


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


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What a CAD program writes.

    `columns` holds for each field the names of its column in any case; of the fields in `needs`, none may lack. Without
    `header` the columns stand in the order of `columns`. `sides` are its words for the sides; without a column of sides
    the name of the file ends as `endings` says. `remark` tells that header and units stand in remarks.
    """

    columns: Mapping[str, tuple[str, ...]]
    needs: tuple[str, ...] = ("refdes", "x", "y", "rotation", "side")
    sides: Mapping[str, Side] = field(default_factory=dict)
    endings: Mapping[str, Side] = field(default_factory=dict)
    header: bool = True
    remark: bool = False
    fallback: str | None = None


_WINDOWS = "cp1252"
"""What programs for Windows write if they write no UTF-8, say in a value with a micro sign."""
DIALECTS: dict[str, _Dialect] = {
    # Ref, Val, Package, PosX, PosY, Rot, Side: a .csv, or a .pos with "# Ref" before the names and "## Unit = mm".
    "kicad": _Dialect(
        {
            "refdes": ("ref",),
            "value": ("val",),
            "package": ("package",),
            "x": ("posx",),
            "y": ("posy",),
            "rotation": ("rot",),
            "side": ("side",),
        },
        sides={"top": Side.TOP, "bottom": Side.BOTTOM},
        remark=True,
    ),
    # Designator, Comment, Layer, Footprint, Center-X(mm), Center-Y(mm), Rotation; "Mid X" in older versions.
    "altium": _Dialect(
        {
            "refdes": ("designator",),
            "value": ("comment",),
            "package": ("footprint",),
            "x": ("center-x", "mid x"),
            "y": ("center-y", "mid y"),
            "rotation": ("rotation",),
            "side": ("layer",),
        },
        sides={"toplayer": Side.TOP, "bottomlayer": Side.BOTTOM, "t": Side.TOP, "b": Side.BOTTOM},
        fallback=_WINDOWS,
    ),
    # Designator, Footprint, Mid X, Mid Y, ..., Layer, Rotation, Comment: UTF-16 with tabs, or CSV; "12.7mm" in cells.
    "easyeda": _Dialect(
        {
            "refdes": ("designator",),
            "value": ("comment", "device"),
            "package": ("footprint", "package"),
            "x": ("mid x",),
            "y": ("mid y",),
            "rotation": ("rotation",),
            "side": ("layer",),
        },
        sides={"t": Side.TOP, "b": Side.BOTTOM, "top": Side.TOP, "bottom": Side.BOTTOM},
    ),
    # mountsmd.ulp: lines "name x y angle value package" without a header, in a .mnt (top) and a .mnb (bottom).
    "eagle": _Dialect(
        {"refdes": (), "x": (), "y": (), "rotation": (), "value": (), "package": ()},
        needs=("refdes", "x", "y", "rotation", "value", "package"),
        endings={".mnt": Side.TOP, ".mnb": Side.BOTTOM},
        header=False,
        fallback=_WINDOWS,
    ),
    "generic": _Dialect(
        {
            "refdes": ("refdes",),
            "value": ("value",),
            "package": ("package",),
            "component": ("component",),
            "x": ("x",),
            "y": ("y",),
            "rotation": ("rotation",),
            "side": ("side",),
        },
        sides={"top": Side.TOP, "bottom": Side.BOTTOM},
    ),
}
"""The dialects by name."""

_UNIT_WORDS = {
    **dict.fromkeys(("mm", "millimeter", "millimeters"), Units.MM),
    **dict.fromkeys(("mil", "mils", "thou"), Units.MIL),
    **dict.fromkeys(("in", "inch", "inches"), Units.INCH),
}
_STATED = re.compile(r"^[#\s]*units?(?:\s+used)?\s*[:=]\s*([a-z]+)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")


def read_placements(path: Path, dialect: str, units: str) -> tuple[Placement, ...]:
    """Read a placement file: all its parts, of both sides, in the order of the file.

    `dialect` is a name of `DIALECTS`, `units` one of mm, mil, inch. Raises ConfigError, with file and line, for an
    unknown dialect or unit, a file that cannot be read or does not fit the dialect, coordinates that are no numbers, a
    part without a side, and a reference designator that stands twice on a side.
    """
    form, unit = _asked(dialect, units)
    lines = text_table.lines(path, "the placement file", form.fallback)
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

    `units` are those that its `header` states, as in "Center-X(mm)".
    """

    lines: tuple[Line, ...]
    columns: Mapping[str, int]
    separator: str | None
    header: Line
    units: tuple[str, ...] = ()

    def row(self, path: Path, line: Line, form: _Dialect) -> dict[str, str]:
        """Return the cells of a line by field; raises ConfigError if a field that is needed lacks or is empty."""
        given = cells(path, line, self.separator)
        row = {field: given[index] for field, index in self.columns.items() if index < len(given)}
        missing = [field for field in form.needs if field not in row or (field in _FILLED and not row[field])]
        if missing:
            raise ConfigError(f"{path}:{line.number}: this line has no {missing[0]}; complete it, or take it out")
        return row


_FILLED = ("refdes", "x", "y", "rotation", "side")
"""The fields whose cells are never empty."""


def _asked(dialect: str, units: str) -> tuple[_Dialect, Units]:
    if dialect not in DIALECTS:
        raise ConfigError(f"'{dialect}' is not a dialect of placement files{did_you_mean(dialect, DIALECTS)}")
    if units not in set(Units):
        raise ConfigError(f"'{units}' is not a unit of placement files; give mm, mil or inch")
    return DIALECTS[dialect], Units(units)


def _refuse_other(path: Path, line: Line, word: str, asked: Units) -> None:
    """Raise ConfigError if a word of the file is another unit than was asked for."""
    if _UNIT_WORDS.get(word.casefold()) is not asked:
        raise ConfigError(f"{path}:{line.number}: the file states '{word}' as its unit, and {asked} was asked for")


def _table(path: Path, dialect: str, form: _Dialect, lines: Sequence[Line]) -> _Table:
    """Find the header of a file; raises ConfigError if no line fits the dialect."""
    if not lines:
        raise ConfigError(f"{path}: the placement file is empty; export it again")
    parts = tuple(line for line in lines if not line.is_remark)
    if not form.header:
        return _Table(parts, {field: index for index, field in enumerate(form.columns)}, None, lines[0])
    for line in lines:
        if line.is_remark and not form.remark:
            continue
        plain = Line(line.number, line.text.lstrip("# \t"))
        for separator in SEPARATORS:
            words = [cell.casefold() for cell in cells(path, plain, separator)]
            bare = [re.sub(r"\s*\(.*\)$", "", word) for word in words]
            columns = {
                field: bare.index(name) for field, names in form.columns.items() for name in names[::-1] if name in bare
            }
            if all(field in columns for field in form.needs):
                units = [re.search(r"\(([a-z]+)\)$", words[columns[field]]) for field in ("x", "y")]
                after = tuple(part for part in parts if part.number > line.number)
                return _Table(after, columns, separator, line, tuple(unit[1] for unit in units if unit))
    names = ", ".join(form.columns[field][0] for field in form.needs)
    raise ConfigError(
        f"{path}: no line is the header of a {dialect} placement file (columns {names}); export it again, or name the "
        f"dialect that the file has: {', '.join(DIALECTS)}"
    )


def _placement(path: Path, line: Line, form: _Dialect, unit: Units, row: Mapping[str, str]) -> Placement:
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


def _side(path: Path, where: str, form: _Dialect, word: str | None) -> Side:
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


def _millimetres(path: Path, line: Line, what: str, text: str, unit: Units) -> float:
    number = _number(what, text)
    if number.unit:
        _refuse_other(path, line, number.unit, unit)
    length = number.value * unit.mm
    if abs(length) > FARTHEST_MM:
        raise ConfigError(f"{what} is {length / 1000:.3g} m away; are the units right?")
    return length
