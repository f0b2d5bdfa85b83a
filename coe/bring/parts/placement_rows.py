"""The rows of a placement file, whatever stands between its cells: commas, semicolons, tabs, "!", or columns of spaces.

A cell that nobody needs may be odd, and a cell in quotes may have line breaks.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coe.bring.parts.placement_header import PlacementHeader, lines_below
from coe.bring.parts.spaced_row import LIKE_A_NUMBER, MIRRORED_TURN, NUMBERS, begun_as_rows, spaced, unquoted
from coe.bring.parts.text_table import TextLine

_MOST_JOINED = 20
"""So many lines may one row take up, by line breaks in its cells."""
_LONGEST_JOINED = 1 << 16
_NEXT_LINE = "\0"
WITHOUT_HEADER = ("refdes", "x", "y", "rotation", "value", "package")
"""The columns of a list that has no header, as mountsmd.ulp of Eagle writes it."""


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """The cells of one part by field; None: the line cannot be divided into the header's columns.

    `all_cells` are those of all columns, `text` is the whole line.
    """

    number: int
    cells: Mapping[str, str] | None
    all_cells: tuple[str, ...] = ()
    text: str = ""


def without_header(fields: Sequence[str], lines: Sequence[TextLine]) -> PlacementHeader:
    """Return the columns of a file without a header, whose fields stand in this order between spaces, or commas."""
    columns = {field: index for index, field in enumerate(fields)}
    for separator in (",", ";", "\t"):
        header = PlacementHeader(0, separator, tuple(fields), (), columns, len(fields))
        if all(_is_row(line.text, header) for line in lines if not line.is_remark):
            return header
    return PlacementHeader(0, None, tuple(fields), (), columns)


def read_without_header(lines: Sequence[TextLine]) -> Mapping[str, str]:
    """Return the first row of a file whose lines all read without a header; empty if they do not."""
    found = [row.cells or {} for row in rows(lines, without_header(WITHOUT_HEADER, lines))]
    fits = all(cells and _has_numbers(cells) for cells in found)
    return found[0] if fits and any(re.match("[A-Za-z]", cells["refdes"]) for cells in found) else {}


def rows(lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[PlacementRow]:
    """Yield the rows below the header; remarks, and lines without a letter or a digit, are passed over."""
    found: list[tuple[int, str]] = []
    waiting: list[TextLine] = []
    below = _below(lines, header)
    header = begun_as_rows(below, header)
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
        for number, text in found:
            cells = spaced(text, header)
            yield PlacementRow(number, _by_field(cells, header), tuple(cells or ()), text)
        return
    # Empty cells beyond the header are no cells where all rows have them; else a separator in a value moved the others.
    divided = [tuple(_csv(text, header.separator)) for _, text in found]
    widest = min((len(row) for row in divided if len(row) >= header.width), default=header.width)
    for (number, text), row in zip(found, divided, strict=True):
        yield PlacementRow(number, _separated(text, header, widest), row, text)


def _below(lines: Sequence[TextLine], header: PlacementHeader) -> list[TextLine]:
    """Return the lines below the header; what Proteus says of its fields, up to a blank line, is no row."""
    below = lines_below(lines, header)
    of_header = next((line for line in lines if line.number == header.number), None)
    if of_header is None or not of_header.text.lstrip().casefold().startswith("fields"):
        return below
    blank = next((at for at in range(1, len(below)) if below[at].number > below[at - 1].number + 1), 0)
    said = below[:blank]
    return below if any('"' in line.text or _is_row(line.text, header) for line in said) else below[blank:]


def _is_remark(line: TextLine, header: PlacementHeader) -> bool:
    """Tell whether a line begins with '#', and not because the cell before the designator does, as "#1" in a value."""
    return line.is_remark and not (header.columns["refdes"] > 0 and _is_row(line.text, header))


def _csv(text: str, separator: str, *, strict: bool = False) -> list[str]:
    """Return the cells of a row; none if it is no such row by every rule, and has several lines or must be `strict`."""
    reader = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=strict or "\n" in text)
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
    spaces = header.separator is None
    cells = _by_field(spaced(text, header), header) if spaces else _separated(text, header, header.width)
    return cells is not None and _has_numbers(cells)


def _by_field(cells: Sequence[str] | None, header: PlacementHeader) -> dict[str, str] | None:
    return None if cells is None else {field: cells[index] for field, index in header.columns.items()}


def _has_numbers(cells: Mapping[str, str]) -> bool:
    return all(LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", cells[field])) for field in NUMBERS if field in cells)


def _separated(text: str, header: PlacementHeader, widest: int) -> dict[str, str] | None:
    """Divide a line at its separators: of the ways that fit the header, the first that finds numbers where they are."""
    names, separator, line = len(header.names), header.separator or ",", text.strip()
    needed = max(header.columns[field] for field in ("refdes", *NUMBERS) if field in header.columns)
    ways = [_csv(text, separator, strict=True)]
    if len(line) > 1 and line[0] == line[-1] == '"':  # all in quotes, which may stand in a cell as well
        ways.append(re.split(rf'"\s*{re.escape(separator)}\s*"', line[1:-1]))
    ways.append(_csv(text, separator))
    if "\n" not in text:
        ways.append([unquoted(cell.strip()) for cell in text.split(separator)])
    fitting = [
        {field: cells[index].replace('""', '"') for field, index in header.columns.items() if index < len(cells)}
        for cells in ways
        # Behind tabs, which no cell has, what stands beside the names is a note.
        if needed < len(cells) and (separator == "\t" or (len(cells) <= widest and not any(cells[names:])))
    ]
    if fitting or "\n" in text:
        return next(filter(_has_numbers, fitting), fitting[0] if fitting else None)
    # A separator in an odd cell does no harm behind all that is needed: there each cell is whole in its quotes.
    cells = [cell.strip() for cell in text.split(separator)[: max(header.columns.values()) + 1]]
    if len(cells) <= needed or not all(re.fullmatch(r'"[^"]*"', cell) for cell in cells):
        return None
    return {field: cells[index].strip('"') for field, index in header.columns.items()}
