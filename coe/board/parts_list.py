"""`parts.csv`: where each part lies on a board, and which component it is. A run reads this form alone.

`coe-board parts` writes it from what people have: docs/placements.md. x and y are mm, y up, as seen from the top, also
for the bottom side; angles are degrees, counterclockwise as the camera sees the side. Who has no places leaves x_mm,
y_mm, angle and side out. A line that begins with '#' is a remark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path

from coe.config import counted
from coe.errors import ConfigError, did_you_mean, list_few, readable
from coe.helpers import regular
from coe.helpers.spelling import composed

COLUMNS = ("refdes", "x_mm", "y_mm", "angle", "side", "component")
NAME = "parts.csv"
"""What the file is called; it lies beside the recipe."""
MAX_BYTES = 64 << 20
FARTHEST_MM = 10_000.0
"""Coordinates beyond it are refused: no board is as large."""


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A component on a board: its type and its reference designator.

    Example:
        >>> with Inspector("demo", parts=[PlacedPart("R0402-10K", "R7")]) as line:
        ...     print(line.submit("R7.png", "R0402-10K", refdes="R7").result().verdict)
        OK
    """

    component: str
    refdes: str


class Side(StrEnum):
    """A side of a board."""

    TOP = "top"
    BOTTOM = "bottom"


@dataclass(frozen=True, slots=True)
class BoardPart:
    """A row: a part, or without a `component` a place that is not inspected, such as a fiducial.

    `x_mm` and `y_mm` are as seen from the top, `rotation_deg` (0 to 360) is counterclockwise as the camera sees the
    side. `line` is its line in the file.
    """

    refdes: str
    x_mm: float
    y_mm: float
    rotation_deg: float
    side: Side
    component: str = ""
    line: int = 0


def read_places(path: Path) -> tuple[BoardPart, ...]:
    """Read the places of a board, in the order of the file; raises ConfigError with file and line."""
    return parse_places(path, content(path))


def parse_places(path: Path, raw: bytes) -> tuple[BoardPart, ...]:
    """Return the places in a file's bytes; raises ConfigError as `read_places` does, which names `path`."""
    return tuple(_part(path, number, cells) for number, cells in _rows(path, raw, COLUMNS))


def read(path: Path) -> tuple[PlacedPart, ...]:
    """Read the parts that are inspected, in the order of the file, which may lack places; raises ConfigError."""
    rows = [(number, cells) for number, cells in _rows(path, content(path), ("refdes", "component"))]
    lines: dict[str, list[int]] = {}
    for number, cells in rows:
        lines.setdefault(cells["refdes"], []).append(number)
    if twice := next(((refdes, at) for refdes, at in lines.items() if len(at) > 1), None):
        raise ConfigError(f"{path}:{twice[1][1]}: '{twice[0]}' is already in line {twice[1][0]}; remove one line")
    parts = tuple(PlacedPart(cells["component"], cells["refdes"]) for _, cells in rows if cells["component"])
    if not parts:
        raise ConfigError(f"{path}: no line names a component; write one for each part that is inspected")
    return parts


def content(path: Path) -> bytes:
    """Return the bytes of a file; raises ConfigError."""
    with readable(f"the parts file {path}"):
        return regular.read(path, MAX_BYTES)


def _rows(path: Path, raw: bytes, needs: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the number and the cells by column of each row; raises ConfigError."""
    bom = "" if len(needs) > 2 else "--bom "
    other = (
        f"{path}: not a parts file (columns {','.join(needs)}); make one from it: coe-board parts {bom}{path} "
        "--to FOLDER"
    )
    try:
        lines = [*enumerate(composed(raw.decode("utf-8-sig")).splitlines(), 1)]
    except UnicodeDecodeError:
        raise ConfigError(other) from None
    lines = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    table = [(number, [cell.strip() for cell in next(csv.reader([line]), [])]) for number, line in lines]
    names = table[0][1] if table else []
    if not {*needs} <= {*names} <= {*COLUMNS} or len({*names}) < len(names):
        raise ConfigError(other)
    if wrong := [number for number, cells in table if len(cells) != len(names) or "\0" in "".join(cells)]:
        raise ConfigError(
            f"{path}:{list_few(map(str, wrong))}: not {len(names)} cells, as in the header; put a cell with a comma in "
            "quotes"
        )
    if len(table) < 2:
        raise ConfigError(f"{path}: there is no part below the header; make the file again with coe-board parts")
    for number, cells in table[1:]:
        row = dict(zip(names, cells, strict=True))
        if not row["refdes"]:
            raise ConfigError(f"{path}:{number}: this line has no reference designator; complete it, or remove it")
        yield number, row


def _part(path: Path, number: int, cells: Mapping[str, str]) -> BoardPart:
    try:
        x, y, angle = (float(cells[name]) for name in ("x_mm", "y_mm", "angle"))
    except ValueError:
        x = y = angle = float("nan")
    if not all(map(isfinite, (x, y, angle))) or max(abs(x), abs(y)) > FARTHEST_MM:
        raise ConfigError(
            f"{path}:{number}: {cells['refdes']}: x_mm '{cells['x_mm']}', y_mm '{cells['y_mm']}' and angle "
            f"'{cells['angle']}' are not all numbers, or lie beyond {FARTHEST_MM:g} mm; correct them"
        )
    if cells["side"] not in set(Side):
        raise ConfigError(f"{path}:{number}: {cells['refdes']}: side '{cells['side']}' is unknown; write top or bottom")
    return BoardPart(cells["refdes"], x, y, angle % 360.0, Side(cells["side"]), cells["component"], number)


def check(parts: Sequence[PlacedPart], components: Mapping[str, object], board: str) -> None:
    """Raise ConfigError if a list names components that a board lacks, or a reference designator twice."""
    unknown = list(dict.fromkeys(part.component for part in parts if part.component not in components))
    if unknown:
        few = list_few(f"'{name}'" for name in unknown)
        raise ConfigError(
            f"the parts list names {counted(len(unknown), 'component')} that board '{board}' does not have: {few}"
            f"{did_you_mean(unknown[0], components)}; correct the list, or add them to the board's rules"
        )
    if len({part.refdes for part in parts}) < len(parts):
        raise ConfigError("the parts list names a reference designator twice; remove one of the two parts")
