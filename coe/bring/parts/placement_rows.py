"""A row of a placement file between spaces, where cells may be empty or have spaces: its numbers tell the cells.

Where they leave a choice, the places of the names in the header tell them; where these do too, there is no answer.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from coe.bring.parts.placement_header import FURTHER_NUMBERS, PlacementHeader, lines_below
from coe.bring.parts.text_table import TextLine
from coe.bring.parts.vocabulary import Row, one_word

NUMBERS = ("x", "y", "rotation")
SPACED_THOUSANDS = r"\d{1,3}(?:[ \u00a0\u2009\u202f'\u2019]\d{3})+"
LIKE_A_NUMBER = re.compile(
    rf"[+\u2212-]?({SPACED_THOUSANDS}([.,]\d*)?|"
    r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(\.\d{3})+,\d+|\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?\s*"
    r"""([a-zµμ]{1,4}|мм|°|º|"|\u2033|'')?""",
    re.IGNORECASE,
)
MIRRORED_TURN = re.compile("^M?S?R(?=[+-]?[0-9])")
"""What Eagle writes before an angle; M is for a part that is mirrored, on the bottom side."""
_Token: TypeAlias = tuple[str, int]
"""What stands between spaces, or in quotes, and where it begins."""
_MOST_ASKEW = 2  # So many signs a text may begin before the name of its column


def unquoted(cell: str) -> str:
    """Return a cell without quotes around it; one behind a number is an inch mark."""
    bare = cell.strip('"')
    return cell if cell == f'{bare}"' and LIKE_A_NUMBER.fullmatch(cell) else bare


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a header: those before the `size` numbers side by side, these (`first` to `end`), and `after`.

    `numeric` are all that hold numbers, `single` those of one word: these, and the side.
    """

    header: PlacementHeader
    numeric: frozenset[int]
    single: frozenset[int]
    first: int
    end: int
    size: int
    after: int

    @classmethod
    def of(cls, header: PlacementHeader) -> _Columns:
        names = [one_word(name) for name in header.names]
        twice = {names[header.columns[axis]] for axis in "xy"}  # as X in mil, and X in mm
        of_fields = {header.columns.get(field) for field in NUMBERS}
        further = FURTHER_NUMBERS | twice
        numeric = frozenset(at for at, name in enumerate(names) if at in of_fields or name in further)
        first = min(numeric)
        end = next(at for at in count(first) if at not in numeric)
        single = numeric | {header.columns.get("side", -1)}
        return cls(header, numeric, single, first, end, end - first, len(names) - end)

    def are_numbers(self, tokens: Sequence[_Token], columns: Iterable[int]) -> bool:
        """Tell whether tokens may be the numbers of columns; an angle may be one of Eagle."""
        turn = self.header.columns.get("rotation")
        return all(
            LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", token) if column == turn else token)
            for (token, _), column in zip(tokens, columns, strict=True)
        )


def spaced(text: str, header: PlacementHeader) -> list[str] | None:
    """Return the cells of a line: by its numbers, by where names stand, and the rest by order; None if all may be."""
    columns = _Columns.of(header)
    tokens = [(match[0], match.start()) for match in re.finditer(r'"[^"]*"|\S+', text)]
    # A designator has no spaces, and so numbers that follow it can only begin at one place, unless it lacks.
    starts = [columns.first] if columns.first < 2 else range(not text[:1].isspace(), len(tokens))
    found = [
        at
        for at in starts
        if at + columns.size <= len(tokens)
        and columns.are_numbers(tokens[at : at + columns.size], range(columns.first, columns.end))
    ]
    below = [at for at in found if _is_below_header(tokens, at, columns)]
    found = [at for at in found if at or at in below]
    in_order = len(tokens) == len(header.names) and columns.are_numbers(
        [tokens[at] for at in columns.numeric], columns.numeric
    )
    is_in_place = below == [columns.first]
    if not header.is_fixed_width:
        if in_order and below and not is_in_place:
            return None
        below = []
    if in_order and (not below or (is_in_place and not _is_moved(tokens[: columns.first], header))):
        words = [token for token, _ in tokens]
        placed = _by_places(tokens[columns.end :], columns) if below else None
        cells: list[str] | None = [*words[: columns.end], *placed] if placed else words
    else:
        cells = _cells_around(tokens, found, below, columns)
    return None if cells is None else [*map(unquoted, cells)]


def begun_as_rows(lines: Sequence[TextLine], header: PlacementHeader) -> PlacementHeader:
    """Return a header between spaces whose names of texts begin where these do in most rows.

    KiCad 4 writes the name Package four signs behind the place where packages begin. Only rows whose cells are all two
    blanks apart tell the places.
    """
    if not header.is_fixed_width:
        return header
    columns = _Columns.of(header)
    texts = [at for at in range(len(header.names)) if at not in columns.numeric]
    begins = Counter[tuple[int, ...]]()
    for line in lines:
        cells = [(match[0], match.start()) for match in re.finditer(r"\S+(?: \S+)*", line.text)]
        is_row = len(cells) == len(header.names)
        if is_row and columns.are_numbers([cells[at] for at in columns.numeric], columns.numeric):
            begins[tuple(cells[at][1] for at in texts)] += 1
    most, count = next(iter(begins.most_common(1)), ((), 0))
    if 2 * count <= begins.total():
        return header
    places = dict(enumerate(header.starts)) | dict(zip(texts, most, strict=True))
    return replace(header, starts=tuple(places.values()))


def _cells_around(
    tokens: Sequence[_Token], found: Sequence[int], below: Sequence[int], columns: _Columns
) -> list[str] | None:
    """Return the cells of a line whose numbers begin at a token of `found`, or `below` names; None if unclear."""
    header, fields, first, after = columns.header, columns.header.columns, columns.first, columns.after
    is_told = len(header.names) < len(tokens) and not fields["refdes"] and fields.get("side", first) >= first
    if not (below or is_told) and header.number:
        return None  # a row of fewer cells tells nowhere which of them lacks
    chosen = below or [at for at in found if (at + columns.size < len(tokens)) == (after > 0)]
    if len(chosen) != 1:
        return None
    at = chosen[0]
    left, numbers, right = tokens[:at], tokens[at : at + columns.size], tokens[at + columns.size :]
    if right and not after:
        return None
    placed = _by_places(right, columns) if below else None
    if placed is None and below and len(right) < after:
        placed = _texts(right, header, after, columns.end)
    texts = [index for index in range(after) if columns.end + index not in columns.single]
    if header.number:
        texts_before = [index for index in range(1, first) if index not in columns.single]
        is_open_before = not below and at != first and len(texts_before) > 1
        if is_open_before or (placed is None and len(right) > after and len(texts) > 1):
            return None
    if placed is None:  # more tokens than cells are of one text; a list without a header lacks its first ones
        words, more = [token for token, _ in right], len(right) - after
        surplus = texts[0] if len(texts) == 1 or (texts and not header.number) else after - 1
        joined = [*words[:surplus], " ".join(words[surplus : surplus + more + 1]), *words[surplus + more + 1 :]]
        lacking = [""] * -more
        placed = joined if more > 0 < after else [*lacking, *words] if not header.number else [*words, *lacking]
    return [*_texts(left, header, first), *(token for token, _ in numbers), *placed]


def _is_below_header(tokens: Sequence[_Token], at: int, columns: _Columns) -> bool:
    """Tell whether the tokens from `at` stand below the names of the numbers, and a text before them below its own."""
    header, first = columns.header, columns.first
    if not header.starts:
        return False
    spans = zip(tokens[at : at + columns.size], header.starts[first:], header.names[first:], strict=False)
    below = all(start < begin + len(name) and begin < start + len(token) for (token, start), begin, name in spans)
    places = [start - begin for begin in header.starts[1:first] for _, start in tokens[1:at]]
    return below and (first < 2 or at < 2 or any(abs(place) <= _MOST_ASKEW for place in places))


def _is_moved(texts: Sequence[_Token], header: PlacementHeader) -> bool:
    """Tell whether a text, taken in order, stands in another column: one is empty, and one has spaces."""
    columns = zip(texts, header.starts, header.starts[1:], strict=False)
    return any(not begin - _MOST_ASKEW <= start < end for (_, start), begin, end in columns)


def _texts(tokens: Sequence[_Token], header: PlacementHeader, count: int, begin: int = 0) -> list[str]:
    """Return `count` cells from the column `begin`: a token is of the last name that begins no later than it does."""
    # The first column of a row, its designator, has no spaces.
    cells = [""] * count
    for number, (token, start) in enumerate(tokens):
        column = 0
        if header.starts and (number or begin or header.columns["refdes"]):
            column = max((at for at in range(count) if header.starts[begin + at] <= start + 1), default=0)
        if number and not begin and count > 1:
            column = max(column, 1)
        cells[column] = f"{cells[column]} {token}".strip()
    return cells


def _by_places(tokens: Sequence[_Token], columns: _Columns) -> list[str] | None:
    """Return the cells behind the numbers by where names stand; None if a text begins elsewhere than below its name.

    So it is if a column of one word has none, or two. One blank alone before it parts two texts, or is of one, unless
    the second begins right below its name.
    """
    starts = columns.header.starts[columns.end :]
    found = [max((at for at, name in enumerate(starts) if name <= start + 1), default=0) for _, start in tokens]
    for number, ((_, start), column) in enumerate(zip(tokens, found, strict=True)):
        before, at = tokens[number - 1]
        is_near = number > 0 and at + len(before) + 1 == start
        is_first = number == 0 or found[number - 1] != column
        if is_first and abs(start - starts[column]) > (0 if is_near else _MOST_ASKEW):
            return None
    cells = _texts(tokens, columns.header, columns.after, columns.end)
    has_words = all(cell and " " not in cell for at, cell in enumerate(cells, columns.end) if at in columns.single)
    return cells if has_words else None


_MOST_JOINED = 20  # So many lines may one row take up, by line breaks in its cells
_LONGEST_JOINED = 1 << 16
_NEXT_LINE = "\0"
WITHOUT_HEADER = ("refdes", "x", "y", "rotation", "value", "package")
"""The columns of a list that has no header, as mountsmd.ulp of Eagle writes it."""


def without_header(fields: Sequence[str], lines: Sequence[TextLine]) -> PlacementHeader:
    """Return the columns of a file without a header, whose fields stand in this order between spaces, or commas."""
    columns = {field: index for index, field in enumerate(fields)}
    for separator in (",", ";", "\t"):
        header = PlacementHeader(0, separator, tuple(fields), (), columns, len(fields))
        if all(_is_row(line.text, header) for line in lines if not line.is_remark):
            return header
    return PlacementHeader(0, None, tuple(fields), (), columns)


def rows(lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[Row]:
    """Yield the rows below the header; remarks, and lines without a letter or a digit, are passed over."""
    found: list[tuple[int, str]] = []
    waiting: list[TextLine] = []
    below = _below(lines, header)
    header = begun_as_rows(below, header)
    for line, following in itertools.zip_longest(below, below[1:]):
        # A line that begins with '#' is no remark if the cell before the designator does, as "#1" in a value.
        is_remark = line.is_remark and not (header.columns["refdes"] > 0 and _is_row(line.text, header))
        if not waiting and (is_remark or not re.search(r"[^\W_]", line.text)):
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
            yield Row(number, _in_fields(text, header), tuple(spaced(text, header) or ()), text)
        return
    # Empty cells beyond the header are no cells where all rows have them; else a separator in a value moved the others.
    divided = [tuple(_csv(text, header.separator)) for _, text in found]
    widest = min((len(row) for row in divided if len(row) >= header.width), default=header.width)
    for (number, text), row in zip(found, divided, strict=True):
        yield Row(number, _in_fields(text, header, widest), row, text)


def _below(lines: Sequence[TextLine], header: PlacementHeader) -> list[TextLine]:
    """Return the lines below the header; what Proteus says of its fields, up to a blank line, is no row."""
    below = lines_below(lines, header)
    of_header = next((line for line in lines if line.number == header.number), None)
    if of_header is None or not of_header.text.lstrip().casefold().startswith("fields"):
        return below
    blank = next((at for at in range(1, len(below)) if below[at].number > below[at - 1].number + 1), 0)
    said = below[:blank]
    return below if any('"' in line.text or _is_row(line.text, header) for line in said) else below[blank:]


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
    cells = _in_fields(text, header)
    return bool(cells) and _has_numbers(cells)


def _has_numbers(cells: Mapping[str, str]) -> bool:
    return all(LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", cells[field])) for field in NUMBERS if field in cells)


def _in_fields(text: str, header: PlacementHeader, widest: int = 0) -> dict[str, str]:
    """Divide a line of `widest` cells at most: by the first way that fits the header and finds numbers; or {}."""
    if header.separator is None:
        words = spaced(text, header)
        return {field: words[index] for field, index in header.columns.items()} if words else {}
    names, separator, line, widest = len(header.names), header.separator, text.strip(), widest or header.width
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
        return next(filter(_has_numbers, fitting), fitting[0] if fitting else {})
    # A separator in an odd cell does no harm behind all that is needed: there each cell is whole in its quotes.
    cells = [cell.strip() for cell in text.split(separator)[: max(header.columns.values()) + 1]]
    if len(cells) <= needed or not all(re.fullmatch(r'"[^"]*"', cell) for cell in cells):
        return {}
    return {field: cells[index].strip('"') for field, index in header.columns.items()}
