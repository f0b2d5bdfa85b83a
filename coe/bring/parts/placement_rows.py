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
from coe.bring.parts.placement_numbers import SPACED_THOUSANDS
from coe.bring.parts.text_table import TextLine
from coe.bring.parts.vocabulary import one_word

NUMBERS = ("x", "y", "rotation")
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
_MOST_ASKEW = 2
"""So many signs a text may begin before the name of its column."""


def unquoted(cell: str) -> str:
    """Return a cell without quotes around it; one behind a number is an inch mark."""
    bare = cell.strip('"')
    return cell if cell == f'{bare}"' and LIKE_A_NUMBER.fullmatch(cell) else bare


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a header: those before the numbers that stand side by side, these, `first` to `end`, and others.

    `numeric` are all that hold numbers, `single` those of one word: these, and the side.
    """

    header: PlacementHeader
    numeric: frozenset[int]
    single: frozenset[int]
    first: int
    end: int

    @classmethod
    def of(cls, header: PlacementHeader) -> _Columns:
        names = [one_word(name) for name in header.names]
        twice = {names[header.columns[axis]] for axis in "xy"}  # as X in mil, and X in mm
        of_fields = {header.columns.get(field) for field in NUMBERS}
        further = FURTHER_NUMBERS | twice
        numeric = frozenset(at for at, name in enumerate(names) if at in of_fields or name in further)
        first = min(numeric)
        end = next(at for at in count(first) if at not in numeric)
        return cls(header, numeric, numeric | {header.columns.get("side", -1)}, first, end)

    @property
    def size(self) -> int:
        """How many numbers stand side by side."""
        return self.end - self.first

    @property
    def after(self) -> int:
        """How many columns follow them."""
        return len(self.header.names) - self.end

    def are_numbers(self, tokens: Sequence[_Token], columns: Iterable[int]) -> bool:
        """Tell whether tokens may be the numbers of columns; an angle may be one of Eagle."""
        turn = self.header.columns.get("rotation")
        return all(
            LIKE_A_NUMBER.fullmatch(MIRRORED_TURN.sub("", token) if column == turn else token)
            for (token, _), column in zip(tokens, columns, strict=True)
        )


def spaced(text: str, header: PlacementHeader) -> list[str] | None:
    """Return the cells of a line: by its numbers, by where the names of the header stand, and the rest by order."""
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
        cells: list[str] | None = [token for token, _ in tokens]
        if below and (placed := _by_places(tokens[columns.end :], columns)):
            cells = [*(token for token, _ in tokens[: columns.end]), *placed]
    else:
        at = _begin_of_numbers(found, below, len(tokens), columns)
        cells = None if at is None else _cells_around(tokens, at, columns, is_below=bool(below))
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
        if len(cells) != len(header.names):
            continue
        if columns.are_numbers([cells[at] for at in columns.numeric], columns.numeric):
            begins[tuple(cells[at][1] for at in texts)] += 1
    most, count = next(iter(begins.most_common(1)), ((), 0))
    if 2 * count <= begins.total():
        return header
    places = dict(enumerate(header.starts)) | dict(zip(texts, most, strict=True))
    return replace(header, starts=tuple(places.values()))


def _begin_of_numbers(found: Sequence[int], below: Sequence[int], tokens: int, columns: _Columns) -> int | None:
    """Return at which of so many `tokens` the numbers begin, of the places `found` and those `below` the header.

    None if more than one may be, or none.
    """
    header, fields = columns.header, columns.header.columns
    is_told = len(header.names) < tokens and not fields["refdes"] and fields.get("side", columns.first) >= columns.first
    if not (below or is_told) and header.number:
        return None  # a row of fewer cells tells nowhere which of them lacks
    follow = [at for at in found if (at + columns.size < tokens) == (columns.after > 0)]
    chosen = below or follow
    return chosen[0] if len(chosen) == 1 else None


def _cells_around(tokens: Sequence[_Token], at: int, columns: _Columns, *, is_below: bool) -> list[str] | None:
    """Return the cells of a line by its numbers, which begin `at` a token; None where spaces may be of two texts."""
    header, first, after = columns.header, columns.first, columns.after
    left, numbers, right = tokens[:at], tokens[at : at + columns.size], tokens[at + columns.size :]
    if right and not after:
        return None
    placed = _by_places(right, columns) if is_below else None
    if placed is None and is_below and len(right) < after:
        placed = _texts(right, header, after, columns.end)
    texts = [index for index in range(after) if columns.end + index not in columns.single]
    if header.number:
        texts_before = [index for index in range(1, first) if index not in columns.single]
        is_open_before = not is_below and at != first and len(texts_before) > 1
        is_open_behind = placed is None and len(right) > after and len(texts) > 1
        if is_open_before or is_open_behind:
            return None
    surplus = texts[0] if len(texts) == 1 or (texts and not header.number) else after - 1
    behind = placed or _trailing(right, after, surplus, is_eagle=not header.number)
    return [*_texts(left, header, first), *(token for token, _ in numbers), *behind]


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
            fitting = (index for index in range(count) if header.starts[begin + index] <= start + 1)
            column = max(fitting, default=0)
        if number and not begin and count > 1:
            column = max(column, 1)
        cells[column] = f"{cells[column]} {token}".strip()
    return cells


def _by_places(tokens: Sequence[_Token], columns: _Columns) -> list[str] | None:
    """Return the cells behind the numbers by where names stand; None if a text begins elsewhere than below its name.

    So it is if a column of one word has none, or two.

    One blank alone before it parts two texts, or is of one, unless the second begins right below its name.
    """
    starts = columns.header.starts[columns.end :]
    found = [max((at for at, name in enumerate(starts) if name <= start + 1), default=0) for _, start in tokens]
    for number, ((_, start), column) in enumerate(zip(tokens, found, strict=True)):
        is_first = number == 0 or found[number - 1] != column
        before, at = tokens[number - 1]
        is_near = number > 0 and at + len(before) + 1 == start
        if is_first and abs(start - starts[column]) > (0 if is_near else _MOST_ASKEW):
            return None
    cells = _texts(tokens, columns.header, columns.after, columns.end)
    has_words = all(cell and " " not in cell for at, cell in enumerate(cells, columns.end) if at in columns.single)
    return cells if has_words else None


def _trailing(tokens: Sequence[_Token], count: int, surplus: int, *, is_eagle: bool) -> list[str]:
    """Return the `count` cells behind the numbers; more tokens than cells are of the cell `surplus`."""
    words = [token for token, _ in tokens]
    more = len(words) - count
    if more > 0 < count:
        return [*words[:surplus], " ".join(words[surplus : surplus + more + 1]), *words[surplus + more + 1 :]]
    lacking = [""] * -more
    return [*lacking, *words] if is_eagle else [*words, *lacking]


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
