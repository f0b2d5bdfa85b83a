"""What converters share: a part as the file of a CAD program has it, and the table that is made of such parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from coe.bring.parts.text_table import Table, TextLine
from coe.bring.parts.vocabulary import FITTED, HOW, LEFT_OUT, Units, plain
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_FITTED = tuple(name for name in FITTED if name not in HOW)
"""The fields that say whether a part is there; one such as Mount may say how it is mounted."""


class CadPart(NamedTuple):
    """A part of a board: where it lies, counterclockwise in degrees, and on which side ("top", "bottom").

    `said` are further fields by name: one such as DNP or Populate says whether the part is fitted. `is_out`: the
    program leaves it out. `line` is its line in the file, for messages.
    """

    refdes: str
    value: str
    package: str
    at: complex
    turn_deg: float
    side: str
    said: Iterable[tuple[str, str]] = ()
    is_out: bool = False
    line: int = 0


def table_of(parts: Sequence[CadPart], notes: Iterable[str] = (), unit: Units = Units.MM) -> Table:
    """Return the table of parts whose places are in `unit`, with notes for the person who confirms it."""
    names = ("Designator", "Value", "Footprint", f"X ({unit})", f"Y ({unit})", "Rotation", "Side", "DNP", "Fitted")
    lines = [TextLine.of_cells(0, names)]
    for number, part in enumerate(parts, 1):
        said = {plain(name): text for name, text in part.said if text}
        out, fitted = (next((said[name] for name in names if name in said), "") for names in (LEFT_OUT, _FITTED))
        numbers = (f"{part.at.real:.6f}", f"{part.at.imag:.6f}", f"{part.turn_deg:g}")
        cells = (*part[:3], *numbers, part.side, "DNP" if part.is_out else out, fitted)
        lines.append(TextLine.of_cells(part.line or number, cells))
    return Table(lines, tuple(notes))


@contextmanager
def numbers_in(path: Path, what: str) -> Iterator[None]:
    """Raise ConfigError, which calls it `what`, for numbers that are missing in a file, or are none."""
    try:
        yield
    except (ValueError, TypeError, IndexError, OverflowError):
        raise ConfigError(f"{path}: {what} lacks a number; save or export the board again") from None


def left_unread(names: Iterable[str], why: str) -> tuple[str, ...]:
    """Return a note on the parts of a board that no placement file of its program would have; none without a name."""
    few = list_few(map(visible, filter(None, dict.fromkeys(names))))
    return (f"not read, {why}: {few}",) if few else ()


def only_board(
    path: Path, noun: str, with_parts: Iterable[str], panels: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    """Return the name of the one board of a file that has components and is no panel, and notes; raises ConfigError."""
    boards = [name for name in with_parts if name not in panels]
    if len(boards) != 1:
        what = f"several boards ({list_few(map(visible, boards))})" if boards else "no components"
        raise ConfigError(f"{path}: this {noun} has {what}; export it for the assembly of one board")
    few = list_few(map(visible, sorted(panels)))
    return boards[0], (f"the places are those of one board, which the panel {few} repeats",) if few else ()
