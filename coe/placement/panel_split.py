"""The placement file of a whole panel, as KiKit exports it, divided into its boards.

KiKit names a part on a panel by a pattern of the user, as `Board_{n}-{orig}`, or leaves its name: each designator then
stands once for each board, and the boards, which are not turned against each other, are told by where they lie.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import dist

from coe.board.parts_list import BoardPart
from coe.errors import ConfigError, list_few

ORIG, NUMBER = "{orig}", "{n}"
_NAMED = re.compile(r"(.*?)(\d+)([-_./])([A-Za-z]+\d+\w*)")
_SAME_MM = 0.02
"""By how much two boards of a panel may differ."""


def pattern_of(placements: Sequence[BoardPart]) -> str | None:
    """Return how the parts of a panel are named, as `Board_{n}-{orig}` or `{orig}`; None if this is no panel."""
    named = [match for place in placements if (match := _NAMED.fullmatch(place.refdes))]
    forms = Counter((match[1], match[3]) for match in named)
    if forms:
        (before, between), count = forms.most_common(1)[0]
        boards: dict[str, set[str]] = {}
        for match in named:
            if (match[1], match[3]) == (before, between):
                boards.setdefault(match[2], set()).add(match[4])
        if (
            len(boards) > 1
            and 2 * count > len(placements)
            and len({frozenset(parts) for parts in boards.values()}) == 1
        ):
            return f"{before}{NUMBER}{between}{ORIG}"
    counts = Counter((place.refdes, place.side) for place in placements if place.refdes[-1:].isdigit())
    many = Counter(counts.values()).most_common(1)
    return ORIG if many and many[0][0] > 1 and 2 * many[0][1] > len(counts) > 1 else None


def on_boards(names: Iterable[str], placements: Sequence[BoardPart]) -> dict[str, list[str]]:
    """Return the names on the panel by the name on a board; none if the placements are of no panel with such names."""
    pattern, found = pattern_of(placements), dict[str, list[str]]()
    for name in names if pattern and NUMBER in pattern else ():
        if match := _form(pattern or "").fullmatch(name):
            found.setdefault(match[2], []).append(name)
    return found


def split(placements: Sequence[BoardPart], pattern: str) -> dict[str, list[BoardPart]]:
    """Return the parts of each board by its name, with the designators that they have on it.

    What the pattern does not name, as fiducials of the frame, belongs to no board. Raises ConfigError if boards differ.
    """
    boards = _by_name(placements, pattern) if NUMBER in pattern else _by_place(placements)
    if len(boards) < 2:
        raise ConfigError(f"fewer than two boards have parts named '{pattern}'; correct panel: refdes")
    (first, parts), *others = ((name, {place.refdes for place in board}) for name, board in boards.items())
    for name, its in others:
        if differing := sorted(its ^ parts):
            raise ConfigError(f"boards '{first}' and '{name}' of the panel differ in {list_few(differing)}")
    return boards


def _form(pattern: str) -> re.Pattern[str]:
    name, _, between = pattern.partition(ORIG)[0].partition(NUMBER)
    return re.compile(f"({re.escape(name)}\\d+){re.escape(between)}(.+)")


def _by_name(placements: Sequence[BoardPart], pattern: str) -> dict[str, list[BoardPart]]:
    form = _form(pattern)
    boards: dict[str, list[BoardPart]] = {}
    for place in placements:
        if match := form.fullmatch(place.refdes):
            boards.setdefault(re.sub(r"[^A-Za-z0-9._+-]", "", match[1]), []).append(replace(place, refdes=match[2]))
    return boards


def _by_place(placements: Sequence[BoardPart]) -> dict[str, list[BoardPart]]:
    """Divide parts whose designators stand once for each board: a shift keeps the order of their places."""
    places: dict[str, list[BoardPart]] = {}
    for place in placements:
        places.setdefault(place.refdes, []).append(place)
    many = Counter(len(of_part) for of_part in places.values() if len(of_part) > 1).most_common(1)
    if not many:
        return {}
    sorted_ = {
        refdes: sorted(of_part, key=lambda place: (round(place.x_mm, 1), round(place.y_mm, 1)))
        for refdes, of_part in places.items()
        if len(of_part) == many[0][0]
    }
    anchor, *_ = sorted_.values()
    for refdes, of_part in sorted_.items():
        for place, at in zip(of_part, anchor, strict=True):
            shift = at.x_mm - anchor[0].x_mm, at.y_mm - anchor[0].y_mm
            moved = place.x_mm - of_part[0].x_mm, place.y_mm - of_part[0].y_mm
            if dist(shift, moved) > _SAME_MM or place.rotation_deg != of_part[0].rotation_deg:
                raise ConfigError(
                    f"{refdes} differs in place or angle between boards of the panel; export it with names such as "
                    f"Board_{NUMBER}-{ORIG} (KiKit: refrename), or the board alone, and write its units"
                )
    columns, rows = (sorted({round(value, 1) for value in values}) for values in _xy(anchor))
    names = [f"r{rows.index(round(at.y_mm, 1)) + 1}c{columns.index(round(at.x_mm, 1)) + 1}" for at in anchor]
    return {name: [of_part[index] for of_part in sorted_.values()] for index, name in enumerate(names)}


def _xy(places: Sequence[BoardPart]) -> tuple[list[float], list[float]]:
    return [place.x_mm for place in places], [place.y_mm for place in places]
