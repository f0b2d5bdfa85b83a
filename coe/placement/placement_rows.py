"""The rows of a placement file, whatever stands between its cells: commas, semicolons, tabs, "!", or columns of spaces.

A cell that nobody needs may be odd. Between spaces, empty cells and cells with spaces are told by the numbers of the
row and by where the header has its names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coe.placement.dialects import plain
from coe.text_table import TextLine

SEPARATORS = (",", ";", "\t", "!", "|", None)
"""What may stand between cells; None means spaces."""
NUMBERS = ("x", "y", "rotation")
_LIKE_A_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?\s*([a-z]{1,4}|°|º)?", re.IGNORECASE)
_FURTHER_NUMBERS = frozenset({"ref x", "ref y", "pad x", "pad y", "height"})
_MOST_JOINED = 20
"""So many lines may one row take up, by line breaks in its cells."""


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
    known = {plain(name) for of_field in names.values() for name in of_field} | _FURTHER_NUMBERS
    for line in lines:
        for separator in SEPARATORS:
            words = _words(line, separator, known)
            columns: dict[str, int] = {}
            for field, of_field in names.items():
                bare = ["" if index in columns.values() else plain(word) for index, (word, _) in enumerate(words)]
                if chosen := next((name for name in map(plain, of_field) if name in bare), None):
                    columns[field] = bare.index(chosen)
            if set(needs) <= columns.keys():
                while words and not words[-1][0]:
                    words.pop()
                return PlacementHeader(
                    line.number, separator, tuple(word for word, _ in words), tuple(at for _, at in words), columns
                )
    return None


def without_header(fields: Sequence[str]) -> PlacementHeader:
    """Return the columns of a file without a header, whose fields stand between spaces in this order."""
    return PlacementHeader(0, None, tuple(fields), (), {field: index for index, field in enumerate(fields)})


def rows(lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[PlacementRow]:
    """Yield the rows below the header; remarks are passed over."""
    waiting: list[TextLine] = []
    for line in lines:
        if line.number <= header.number or (line.is_remark and not waiting):
            continue
        waiting.append(line)
        text = " ".join(one.text for one in waiting)
        cells = _spaced(text, header) if header.separator is None else _separated(text, header)
        if cells is None and header.separator is not None and text.count('"') % 2 and len(waiting) < _MOST_JOINED:
            continue  # a line break in a cell
        yield PlacementRow(waiting[0].number, cells)
        waiting = []
    if waiting:
        yield PlacementRow(waiting[0].number, None)


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
            (n for n in (3, 2) if plain(" ".join(word for word, _ in words[:n])) in known and len(words) >= n), 1
        )
        joined.append((" ".join(word for word, _ in words[:size]), words[0][1]))
        words = words[size:]
    return joined


def _separated(text: str, header: PlacementHeader) -> dict[str, str] | None:
    width, separator = len(header.names), header.separator or ","
    last = max(header.columns.values())
    line = text.strip()
    cells: list[str] = []
    if len(line) > 1 and line[0] == line[-1] == '"':  # all in quotes, which may stand in a cell as well
        cells = re.split(rf'"\s*{re.escape(separator)}\s*"', line[1:-1])
    if len(cells) != width:
        reader = csv.reader([text], delimiter=separator, skipinitialspace=True)
        cells = [cell.strip() for cell in next(reader, [])]
        while len(cells) > width and not cells[-1]:
            cells.pop()
    if len(cells) > width:
        # A separator in an odd cell does no harm behind all that is needed: there each cell is whole in its quotes.
        cells = [cell.strip() for cell in text.split(separator)[: last + 1]]
        if not all(re.fullmatch(r'"[^"]*"', cell) for cell in cells):
            return None
        cells = [cell.strip('"') for cell in cells]
    if len(cells) <= max(header.columns[field] for field in ("refdes", *NUMBERS)):
        return None
    return {field: cells[index].replace('""', '"') for field, index in header.columns.items() if index < len(cells)}


def _spaced(text: str, header: PlacementHeader) -> dict[str, str] | None:
    """Divide a line between spaces: by its numbers, by where the names of the header stand, and the rest by order."""
    tokens = [(match[0], match.start()) for match in re.finditer(r'"[^"]*"|\S+', text)]
    names = [plain(name) for name in header.names]
    fields = {index: field for field, index in header.columns.items()}
    numeric = [fields.get(index) in NUMBERS or name in _FURTHER_NUMBERS for index, name in enumerate(names)]
    if len(tokens) == len(names):
        cells = [token for token, _ in tokens]
        if all(_LIKE_A_NUMBER.fullmatch(cell) for cell, is_number in zip(cells, numeric, strict=True) if is_number):
            return {field: cells[index].strip('"') for field, index in header.columns.items()}
    first = numeric.index(True)
    size = next((n for n, is_number in enumerate(numeric[first:]) if not is_number), len(numeric) - first)
    after = len(names) - first - size
    candidates = []
    for at in range(min(first, 1), len(tokens) - size + 1):
        block = [token for token, _ in tokens[at : at + size]]
        left, right = tokens[:at], tokens[at + size :]
        enough = len(right) >= min(after, 1) and (len(right) <= after or after > 0)
        if all(map(_LIKE_A_NUMBER.fullmatch, block)) and enough and len(left) >= 1:
            candidates.append((_strangeness(header, at, tokens, first, len(right) - after), at))
    if not candidates or (len(candidates) > 1 and sorted(candidates)[0][0] == sorted(candidates)[1][0]):
        return None
    at = min(candidates)[1]
    cells = [*_texts(tokens[:at], header, first), *(token for token, _ in tokens[at : at + size])]
    cells += _trailing([token for token, _ in tokens[at + size :]], after, is_eagle=not header.number)
    return {field: cells[index].strip('"') for field, index in header.columns.items()}


def _strangeness(
    header: PlacementHeader, at: int, tokens: Sequence[tuple[str, int]], first: int, surplus: int
) -> tuple[int, float]:
    """Return how little it fits that the numbers of a row begin with a token: by what is left over, then by place."""
    place = abs(tokens[at][1] - header.starts[first]) if header.starts else at
    return abs(surplus) if surplus < 0 or header.starts else 0, place


def _texts(tokens: Sequence[tuple[str, int]], header: PlacementHeader, count: int) -> list[str]:
    """Return the first `count` cells of a row: a token belongs to the last name that begins no later than it does."""
    cells = [""] * count
    for number, (token, start) in enumerate(tokens):
        column = 0
        if number and header.starts:
            column = max((index for index in range(count) if header.starts[index] <= start + 1), default=0)
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
