"""The rows of a placement file, whatever stands between its cells: commas, semicolons, tabs, "!", or columns of spaces.

A cell that nobody needs may be odd. Between spaces, empty cells and cells with spaces are told by the numbers of the
row and by where the header has its names.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coe.placement.dialects import plain
from coe.text_table import TextLine

SEPARATORS = (",", ";", "\t", "!", "|", None)
"""What may stand between cells; None means spaces."""
NUMBERS = ("x", "y", "rotation")
_LIKE_A_NUMBER = re.compile(
    r"[+\u2212-]?(\d{1,3}(,\d{3})+\.\d+|\d{1,3}(\.\d{3})+,\d+|\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?\s*([a-z]{1,4}|°|º)?",
    re.IGNORECASE,
)
MIRRORED_TURN = re.compile("^M?S?R(?=[+-]?[0-9])")
"""What Eagle writes before an angle; M is for a part that is mirrored, on the bottom side."""
_FURTHER_NUMBERS = frozenset({"ref x", "ref y", "pad x", "pad y", "height"})
_MOST_JOINED = 20
"""So many lines may one row take up, by line breaks in its cells."""
_LONGEST_JOINED = 1 << 16
_NEXT_LINE = "\0"
_MOST_ASKEW = 2
"""So many signs a text may begin before the name of its column."""


@dataclass(frozen=True, slots=True)
class PlacementHeader:
    """The columns of a file: their names, where each begins in its line, and which of them each field has.

    `separator` is None for spaces; `number` is the line of the header, 0 without one.
    """

    number: int
    separator: str | None
    names: tuple[str, ...]
    starts: tuple[int, ...]
    columns: Mapping[str, int]
    width: int = 0
    """How many cells the line of the header has, with those that are empty."""

    @property
    def is_fixed_width(self) -> bool:
        """Whether the names of a header between spaces stand as far from each other as columns of one width do."""
        pairs = zip(self.starts, self.names, self.starts[1:], strict=False)
        return any(start + len(name) + 1 < following for start, name, following in pairs)

    @property
    def unused(self) -> tuple[str, ...]:
        """The names of the columns that no field has."""
        return tuple(name for index, name in enumerate(self.names) if name and index not in self.columns.values())


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """The cells of one part by field; None: the line cannot be divided into the header's columns."""

    number: int
    cells: Mapping[str, str] | None


def find_header(
    lines: Sequence[TextLine], names: Mapping[str, Sequence[str]], needs: Collection[str]
) -> PlacementHeader | None:
    """Return the first line that has a column for each field of `needs`; None if no line has."""
    known_of = {field: [plain(name) for name in of_field] for field, of_field in names.items()}
    known = {name for of_field in known_of.values() for name in of_field} | _FURTHER_NUMBERS
    for line in lines:
        for separator, joinable in (*((separator, known) for separator in SEPARATORS), (None, ())):
            words = _words(line, separator, joinable)
            columns: dict[str, int] = {}
            bare = [plain(word) for word, _ in words]
            # The names of both axes stand in one order: x of the middle and y of the first pin are no place.
            pairs = zip(known_of.get("x", ()), known_of.get("y", ()), strict=False)
            pair = next((pair for pair in pairs if {*pair} <= {*bare}), ())
            for field, of_field in {**known_of, **dict(zip("xy", ([name] for name in pair), strict=False))}.items():
                if chosen := next((name for name in of_field if name in bare), None):
                    columns[field] = bare.index(chosen)
                    bare[columns[field]] = ""
            if set(needs) <= columns.keys():
                width = len(words)
                while words and not words[-1][0]:
                    words.pop()
                cells, starts = zip(*words, strict=True)
                return PlacementHeader(line.number, separator, cells, starts, columns, width)
    return None


def without_header(fields: Sequence[str], lines: Sequence[TextLine]) -> PlacementHeader:
    """Return the columns of a file without a header, whose fields stand in this order between spaces, or commas."""
    columns = {field: index for index, field in enumerate(fields)}
    for separator in (",", ";", "\t"):
        header = PlacementHeader(0, separator, tuple(fields), (), columns, len(fields))
        if all(_is_row(line.text, header) for line in lines if not line.is_remark):
            return header
    return PlacementHeader(0, None, tuple(fields), (), columns)


def rows(lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[PlacementRow]:
    """Yield the rows below the header; remarks, and lines without a letter or a digit, are passed over."""
    found: list[tuple[int, str]] = []
    waiting: list[TextLine] = []
    below = _below(lines, header)
    for line, following in itertools.zip_longest(below, below[1:]):
        if not waiting and (_is_remark(line, header) or not re.search(r"[^\W_]", line.text)):
            continue
        waiting.append(line)
        text = "\n".join(one.text for one in waiting)
        may_go_on = following is not None and len(waiting) < _MOST_JOINED and len(text) < _LONGEST_JOINED
        if may_go_on and _is_open(text, header) and not _is_row(following.text, header):
            continue  # a line break in a cell
        found.append((waiting[0].number, text))
        waiting = []
    if header.separator is None:
        yield from (PlacementRow(number, _spaced(text, header)) for number, text in found)
        return
    # Empty cells beyond the header are no cells where all rows have them; else a separator in a value moved the others.
    widths = [len(_csv(text, header.separator)) for _, text in found]
    widest = min((width for width in widths if width >= header.width), default=header.width)
    yield from (PlacementRow(number, _separated(text, header, widest)) for number, text in found)


def _below(lines: Sequence[TextLine], header: PlacementHeader) -> list[TextLine]:
    """Return the lines below the header; what Proteus says of its fields, up to a blank line, is no row."""
    below = [line for line in lines if line.number > header.number]
    of_header = next((line for line in lines if line.number == header.number), None)
    if of_header is None or not of_header.text.lstrip().casefold().startswith("fields"):
        return below
    blank = next((at for at in range(1, len(below)) if below[at].number > below[at - 1].number + 1), 0)
    said = below[:blank]
    return below if any('"' in line.text or _is_row(line.text, header) for line in said) else below[blank:]


def _is_remark(line: TextLine, header: PlacementHeader) -> bool:
    """Tell whether a line begins with '#', and not because the cell before the designator does, as "#1" in a value."""
    return line.is_remark and not (header.columns["refdes"] > 0 and _is_row(line.text, header))


def _csv(text: str, separator: str) -> list[str]:
    """Return the cells of a row; none of several lines that are no such row by every rule."""
    reader = csv.reader([text], delimiter=separator, skipinitialspace=True, strict="\n" in text)
    try:
        return [" ".join(cell.split("\n")).strip() for cell in next(reader, [])]
    except csv.Error:
        return []


def _is_open(text: str, header: PlacementHeader) -> bool:
    """Tell whether a line ends within a cell in quotes."""
    if text.count('"') % 2 == 0:
        return False
    if header.separator is None:
        return bool(re.search(r'\s"[^"]*$', text))
    reader = csv.reader([text, _NEXT_LINE], delimiter=header.separator, skipinitialspace=True)
    return _NEXT_LINE in next(reader, [""])[-1]


def _is_row(text: str, header: PlacementHeader) -> bool:
    """Tell whether a line is a row by itself: then a quote in the line before was a sign of its value."""
    cells = _spaced(text, header) if header.separator is None else _separated(text, header, header.width)
    return cells is not None and _has_numbers(cells)


def _has_numbers(cells: Mapping[str, str]) -> bool:
    return all(_LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", cells[field])) for field in NUMBERS)


def _words(line: TextLine, separator: str | None, known: Collection[str]) -> list[tuple[str, int]]:
    """Return the names of a line with their places; between spaces, names of several words are those that are known."""
    text = line.text
    prefix = re.match(r"#[#\s]*|\s*fields\s*:\s*", text, re.IGNORECASE)
    shift = prefix.end() if prefix else 0
    text = text[shift:]
    if separator is not None:
        return [(cell.strip(), 0) for cell in next(csv.reader([text], delimiter=separator, skipinitialspace=True), [])]
    words = [(match[0].strip('"'), match.start() + shift) for match in re.finditer(r'"[^"]*"|\S+', text)]
    joined: list[tuple[str, int]] = []
    while words:
        size = next(
            (
                n
                for n in (3, 2)
                if plain(name := " ".join(word for word, _ in words[:n])) in known and name in line.text
            ),
            1,
        )
        joined.append((" ".join(word for word, _ in words[:size]), words[0][1]))
        words = words[size:]
    return joined


def _separated(text: str, header: PlacementHeader, widest: int) -> dict[str, str] | None:
    """Divide a line at its separators: of the ways that fit the header, the first that finds numbers where they are."""
    names, separator, line = len(header.names), header.separator or ",", text.strip()
    needed = max(header.columns[field] for field in ("refdes", *NUMBERS))
    ways = []
    if len(line) > 1 and line[0] == line[-1] == '"':  # all in quotes, which may stand in a cell as well
        ways.append(re.split(rf'"\s*{re.escape(separator)}\s*"', line[1:-1]))
    ways.append(_csv(text, separator))
    if "\n" not in text:
        ways.append([cell.strip().strip('"') for cell in text.split(separator)])
    fitting = [
        {field: cells[index].replace('""', '"') for field, index in header.columns.items() if index < len(cells)}
        for cells in ways
        if needed < len(cells) <= widest and not any(cells[names:])
    ]
    if fitting or "\n" in text:
        return next(filter(_has_numbers, fitting), fitting[0] if fitting else None)
    # A separator in an odd cell does no harm behind all that is needed: there each cell is whole in its quotes.
    cells = [cell.strip() for cell in text.split(separator)[: max(header.columns.values()) + 1]]
    if len(cells) <= needed or not all(re.fullmatch(r'"[^"]*"', cell) for cell in cells):
        return None
    return {field: cells[index].strip('"') for field, index in header.columns.items()}


def _spaced(text: str, header: PlacementHeader) -> dict[str, str] | None:
    """Divide a line between spaces: by its numbers, by where the names of the header stand, and the rest by order."""
    tokens = [(match[0], match.start()) for match in re.finditer(r'"[^"]*"|\S+', text)]
    names = [plain(name) for name in header.names]
    fields = {index: field for field, index in header.columns.items()}
    numeric = [fields.get(index) in NUMBERS or name in _FURTHER_NUMBERS for index, name in enumerate(names)]
    first = numeric.index(True)
    size = next((n for n, is_number in enumerate(numeric[first:]) if not is_number), len(numeric) - first)
    after = len(names) - first - size
    turn = header.columns["rotation"]
    like = [bool(_LIKE_A_NUMBER.fullmatch(token)) for token, _ in tokens]
    like_turn = [bool(_LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", token))) for token, _ in tokens]
    # A designator has no spaces, and so numbers that follow it can only begin at one place.
    starts = range(first, first + 1) if first < 2 else range(1, len(tokens) - size + 1)
    found = [
        at
        for at in starts
        if len(tokens) >= size
        and all(
            like_of[at + index] for index in range(size) for like_of in [like_turn if first + index == turn else like]
        )
    ]
    below = [at for at in found if _is_below_header(tokens, at, first, size, header)]
    in_order = len(tokens) == len(names) and all(
        (like_turn if at == turn else like)[at] for at, is_number in enumerate(numeric) if is_number
    )
    if not header.is_fixed_width:
        if in_order and below not in ([], [first]):
            return None
        below = []
    if in_order and not (below and (below != [first] or _is_moved(tokens[:first], header))):
        return {field: tokens[index][0].strip('"') for field, index in header.columns.items()}
    # Without a place below the header, a row of fewer cells tells nowhere which of them lacks.
    found = [at for at in found if min(after, 1) <= len(tokens) - at - size <= (len(tokens) if after else 0)]
    chosen = below or (found if len(tokens) > len(names) or not header.number else [])
    is_told = below or not header.number or header.columns["refdes"] == 0 <= header.columns.get("side", first) - first
    if len(chosen) != 1 or not is_told:
        return None
    at = chosen[0]
    cells = [*_texts(tokens[:at], header, first), *(token for token, _ in tokens[at : at + size])]
    right = tokens[at + size :]
    cells += (
        _texts(right, header, after, first + size)
        if below and len(right) < after
        else _trailing([token for token, _ in right], after, is_eagle=not header.number)
    )
    return {field: cells[index].strip('"') for field, index in header.columns.items()}


def _is_below_header(
    tokens: Sequence[tuple[str, int]], at: int, first: int, size: int, header: PlacementHeader
) -> bool:
    """Tell whether the tokens from `at` stand below the names of the numbers, and a text before them below its own."""
    if not header.starts:
        return False
    spans = zip(tokens[at : at + size], header.starts[first:], header.names[first:], strict=False)
    below = all(start < begin + len(name) and begin < start + len(token) for (token, start), begin, name in spans)
    places = [start - begin for begin in header.starts[1:first] for _, start in tokens[1:at]]
    return below and (first < 2 or at == 1 or any(abs(place) <= _MOST_ASKEW for place in places))


def _is_moved(texts: Sequence[tuple[str, int]], header: PlacementHeader) -> bool:
    """Tell whether a text, taken in order, stands in another column: one is empty, and one has spaces."""
    columns = zip(texts, header.starts, header.starts[1:], strict=False)
    return any(not begin - _MOST_ASKEW <= start < end for (_, start), begin, end in columns)


def _texts(tokens: Sequence[tuple[str, int]], header: PlacementHeader, count: int, begin: int = 0) -> list[str]:
    """Return `count` cells from the column `begin`: a token is of the last name that begins no later than it does.

    The first column of a row, its designator, has no spaces.
    """
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


def _trailing(tokens: Sequence[str], count: int, *, is_eagle: bool) -> list[str]:
    """Return the `count` cells behind the numbers; the surplus is of the last cell, or with Eagle of the value."""
    if len(tokens) > count > 0:
        if is_eagle:
            return [" ".join(tokens[: len(tokens) - count + 1]), *tokens[len(tokens) - count + 1 :]]
        return [*tokens[: count - 1], " ".join(tokens[count - 1 :])]
    lacking = [""] * (count - len(tokens))
    return [*lacking, *tokens] if is_eagle else [*tokens, *lacking]
