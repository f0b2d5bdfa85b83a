"""Lines among the rows of a placement file that are no part: totals, titles of pages, and units below the header."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from coe.bring.parts.placement_header import PlacementHeader
from coe.bring.parts.placement_rows import LIKE_A_NUMBER, PlacementRow
from coe.bring.parts.refdes import USUAL
from coe.bring.parts.vocabulary import UNIT_WORDS, says_so
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_MOST_TOLD, _MOST_SIGNS = 3, 40


@dataclass(frozen=True, slots=True)
class NotedRows:
    """The rows of parts, those that are notes, and the words for units of x and y in a row for them, by line."""

    parts: list[PlacementRow]
    notes: list[PlacementRow]
    units: dict[int, tuple[str, str]]

    @property
    def told(self) -> tuple[str, ...]:
        """A sentence about the notes, if there are any."""
        few = list_few((f"line {row.number}: '{_short(row)}'" for row in self.notes), _MOST_TOLD, "; ")
        return (f"passed over, as they name no part: {few}",) if self.notes else ()


def divided(path: Path, rows: Sequence[PlacementRow], header: PlacementHeader, sides: Collection[str]) -> NotedRows:
    """Divide the rows of a file; a note has no place, and no designator. `sides` are words for sides not told yet.

    Raises ConfigError for a note that may be a heading, of parts of one side or of parts that are not fitted.
    """
    units = {row.number: cells for row in rows if (cells := _units_in(row))}
    names = [(row.cells or {}).get("refdes", "") for row in rows if row.cells is not None and _has_place(row)]
    have_numbers = all(re.search(r"\d", name) for name in names if name)
    may_have_notes = header.number and names and have_numbers
    notes = [row for row in rows if may_have_notes and row.number not in units and _is_note(row)]
    last = max((row.number for row in rows if _has_place(row)), default=0)
    for row in notes:
        if row.number > last:
            break  # it heads nothing
        words = {*re.findall(r"[^\W\d_]{3,}", row.text.casefold()), _short(row).casefold()}
        if "side" not in header.columns and words & {*sides}:
            what = "may say the side of parts; say it in a column Side"
        elif says_so(row.text) and "=" not in row.text:
            what = "may head parts that are not fitted; say it in a column DNP"
        else:
            continue
        raise ConfigError(f"{path}:{row.number}: '{_short(row)}' {what} of each of their lines")
    passed = {row.number for row in notes} | units.keys()
    return NotedRows([row for row in rows if row.number not in passed], notes, units)


def _units_in(row: PlacementRow) -> tuple[str, str] | None:
    """Return the words for units where x and y stand in a row without a designator; None if there are none."""
    cells = row.cells or {}
    x, y = (cells.get(axis, "").strip("()[]. ") for axis in ("x", "y"))
    are_units = {x.casefold(), y.casefold()} <= {*UNIT_WORDS, "cm"}
    return (x, y) if are_units and not re.search(r"\d", cells.get("refdes", "")) else None


def _has_place(row: PlacementRow) -> bool:
    return all(LIKE_A_NUMBER.fullmatch((row.cells or {}).get(axis, "")) for axis in ("x", "y"))


def _is_note(row: PlacementRow) -> bool:
    """Tell whether a row has fewer numbers than a place, and no word with a digit where its designator would be.

    One that has an angle and a side is of a part whose place lacks.
    """
    cells = row.cells or {}
    filled = [*filter(None, row.all_cells)] or row.text.split()
    numbers = sum(LIKE_A_NUMBER.fullmatch(cell) is not None for cell in filled)
    firsts = (filled[0], cells.get("refdes", "")) if filled else ()
    may_be_named = any(re.fullmatch(r"\S*\d\S*", first) for first in firsts) or any(map(USUAL.fullmatch, filled))
    is_placed = cells.get("side") and LIKE_A_NUMBER.fullmatch(cells.get("rotation", ""))
    return not (_has_place(row) or numbers > 1 or may_be_named or is_placed)


def _short(row: PlacementRow) -> str:
    text = " ".join(filter(None, row.all_cells)) or row.text.strip()
    return visible(text[:_MOST_SIGNS])
