"""A row of a placement file between spaces, where cells may be empty or have spaces: its numbers tell the cells.

Where they leave a choice, the places of the names in the header tell them; where these do too, there is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from coe.cad.placement_header import FURTHER_NUMBERS, PlacementHeader
from coe.cad.placement_numbers import SPACED_THOUSANDS
from coe.cad.vocabulary import one_word

NUMBERS = ("x", "y", "rotation")
LIKE_A_NUMBER = re.compile(
    rf"[+\u2212-]?({SPACED_THOUSANDS}([.,]\d*)?|"
    r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(\.\d{3})+,\d+|\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?\s*"
    r"""([a-zµμ]{1,4}|мм|°|º|"|\u2033|'')?""",
    re.IGNORECASE,
)
MIRRORED_TURN = re.compile("^M?S?R(?=[+-]?[0-9])")
"""What Eagle writes before an angle; M is for a part that is mirrored, on the bottom side."""
_MOST_ASKEW = 2
"""So many signs a text may begin before the name of its column."""


def unquoted(cell: str) -> str:
    """Return a cell without quotes around it; one behind a number is an inch mark."""
    bare = cell.strip('"')
    return cell if cell == f'{bare}"' and LIKE_A_NUMBER.fullmatch(cell) else bare


def spaced(text: str, header: PlacementHeader) -> list[str] | None:
    """Return the cells of a line: by its numbers, by where the names of the header stand, and the rest by order."""
    tokens = [(match[0], match.start()) for match in re.finditer(r'"[^"]*"|\S+', text)]
    names = [one_word(name) for name in header.names]
    fields = {index: field for field, index in header.columns.items()}
    twice = {names[header.columns[axis]] for axis in "xy"}  # as X in mil, and X in mm
    numeric = [fields.get(at) in NUMBERS or name in FURTHER_NUMBERS | twice for at, name in enumerate(names)]
    first = numeric.index(True)
    size = next((n for n, is_number in enumerate(numeric[first:]) if not is_number), len(numeric) - first)
    after = len(names) - first - size
    turn = header.columns.get("rotation")
    like = [bool(LIKE_A_NUMBER.fullmatch(token)) for token, _ in tokens]
    like_turn = [bool(LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", token))) for token, _ in tokens]
    # A designator has no spaces, and so numbers that follow it can only begin at one place, unless it lacks.
    starts = range(first, first + 1) if first < 2 else range(not text[:1].isspace(), len(tokens))
    found = [
        at
        for at in starts
        if at + size <= len(tokens)
        and all(
            like_of[at + index] for index in range(size) for like_of in [like_turn if first + index == turn else like]
        )
    ]
    below = [at for at in found if _is_below_header(tokens, at, first, size, header)]
    found = [at for at in found if at or at in below]
    in_order = len(tokens) == len(names) and all(
        (like_turn if at == turn else like)[at] for at, is_number in enumerate(numeric) if is_number
    )
    if not header.is_fixed_width:
        if in_order and below not in ([], [first]):
            return None
        below = []
    last = first + size
    single = {index for index, is_number in enumerate(numeric) if is_number} | {header.columns.get("side", -1)}
    if in_order and not (below and (below != [first] or _is_moved(tokens[:first], header))):
        placed = _by_places(tokens[last:], header, after, last, single) if below else None
        return [
            *map(unquoted, [*(token for token, _ in tokens[:last]), *(placed or (token for token, _ in tokens[last:]))])
        ]
    # Without a place below the header, a row of fewer cells tells nowhere which of them lacks.
    found = [at for at in found if min(after, 1) <= len(tokens) - at - size <= (len(tokens) if after else 0)]
    chosen = below or (found if len(tokens) > len(names) or not header.number else [])
    is_told = below or not header.number or header.columns["refdes"] == 0 <= header.columns.get("side", first) - first
    if len(chosen) != 1 or not is_told:
        return None
    at = chosen[0]
    cells = [*_texts(tokens[:at], header, first), *(token for token, _ in tokens[at : at + size])]
    right = tokens[at + size :]
    if right and not after:
        return None
    texts = [index for index in range(after) if last + index not in single]
    placed = _by_places(right, header, after, last, single) if below else None
    if placed is None and below and len(right) < after:
        placed = _texts(right, header, after, last)
    before = [index for index in range(1, first) if index not in single]
    is_open = (not below and at != first and len(before) > 1) or (
        placed is None and len(right) > after and len(texts) > 1
    )
    if is_open and header.number:  # spaces of two texts
        return None
    surplus = texts[0] if len(texts) == 1 or (texts and not header.number) else after - 1
    return [*map(unquoted, [*cells, *(placed or _trailing(right, after, surplus, is_eagle=not header.number))])]


def _is_below_header(
    tokens: Sequence[tuple[str, int]], at: int, first: int, size: int, header: PlacementHeader
) -> bool:
    """Tell whether the tokens from `at` stand below the names of the numbers, and a text before them below its own."""
    if not header.starts:
        return False
    spans = zip(tokens[at : at + size], header.starts[first:], header.names[first:], strict=False)
    below = all(start < begin + len(name) and begin < start + len(token) for (token, start), begin, name in spans)
    places = [start - begin for begin in header.starts[1:first] for _, start in tokens[1:at]]
    return below and (first < 2 or at < 2 or any(abs(place) <= _MOST_ASKEW for place in places))


def _is_moved(texts: Sequence[tuple[str, int]], header: PlacementHeader) -> bool:
    """Tell whether a text, taken in order, stands in another column: one is empty, and one has spaces."""
    columns = zip(texts, header.starts, header.starts[1:], strict=False)
    return any(not begin - _MOST_ASKEW <= start < end for (_, start), begin, end in columns)


def _texts(tokens: Sequence[tuple[str, int]], header: PlacementHeader, count: int, begin: int = 0) -> list[str]:
    """Return `count` cells from the column `begin`: a token is of the last name that begins no later than it does."""
    # The first column of a row, its designator, has no spaces.
    cells = [""] * count
    for number, (token, start) in enumerate(tokens):
        column = 0
        if header.starts and (number or begin or header.columns["refdes"]):
            fitting = (index for index in range(count) if header.starts[begin + index] <= start + 1)
            column = max(fitting, default=0)
        if number and not begin and count > 1:
            column = max(column, 1)
        cells[column] = f"{cells[column]} {token}".strip()
    return cells


def _by_places(
    tokens: Sequence[tuple[str, int]], header: PlacementHeader, count: int, begin: int, single: Collection[int]
) -> list[str] | None:
    """Return the cells behind the numbers by where names stand; None if a text begins elsewhere than below its name.

    So it is if a column of `single`, a number or a side, has none.

    One blank alone before it parts two texts, or is of one, unless the second begins right below its name.
    """
    starts = header.starts[begin : begin + count]
    columns = [max((at for at, name in enumerate(starts) if name <= start + 1), default=0) for _, start in tokens]
    for number, ((_, start), column) in enumerate(zip(tokens, columns, strict=True)):
        is_first = number == 0 or columns[number - 1] != column
        before, at = tokens[number - 1]
        is_near = number > 0 and at + len(before) + 1 == start
        if is_first and abs(start - starts[column]) > (0 if is_near else _MOST_ASKEW):
            return None
    cells = _texts(tokens, header, count, begin)
    has_words = all(cell and " " not in cell for at, cell in enumerate(cells, begin) if at in single)
    return cells if has_words else None


def _trailing(tokens: Sequence[tuple[str, int]], count: int, surplus: int, *, is_eagle: bool) -> list[str]:
    """Return the `count` cells behind the numbers; more tokens than cells are of the cell `surplus`."""
    words = [token for token, _ in tokens]
    more = len(words) - count
    if more > 0 < count:
        return [*words[:surplus], " ".join(words[surplus : surplus + more + 1]), *words[surplus + more + 1 :]]
    lacking = [""] * -more
    return [*lacking, *words] if is_eagle else [*words, *lacking]
