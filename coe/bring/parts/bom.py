"""Bills of materials (BOM): value and package of each part, and which parts are not fitted, beside a placement file.

A line is of one kind of part, with all its designators: "R1,R2", "R1-R4", "C1 C2".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_high
from typing import TypeAlias

from coe.bring.parts.board_files import read_board_file
from coe.bring.parts.placement_file import FittedQuestion, Placement, expect_answered
from coe.bring.parts.placement_header import PlacementHeader, find_headers, lines_below
from coe.bring.parts.placement_rows import unquoted
from coe.bring.parts.refdes import COUNT, USUAL, designators, fault_of, hold_designators, is_date
from coe.bring.parts.text_table import TextLine, expect_unstruck, further_lines, in_utf8, lines_of
from coe.bring.parts.vocabulary import (
    BOM_COLUMNS,
    BOM_LAST_VALUES,
    BOM_TEXTS,
    FittedRow,
    fitting_of,
    one_word,
    plain,
    says_so,
)
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible
from coe.placement.panel_split import on_boards

_QUANTITY = re.compile(r"\s*(?P<n>\d+)(?:[.,]0+)?(?![\d.,])")
_LIKE_A_NAME = re.compile(r"[^\W\d_]+[_-]?\d")
_LABEL = re.compile(r":\s|\uff1a")
_SAYS_SO = "says that a part is not fitted; give that part a line, and say it there in a column DNP"
_MOST_TOLD, _MOST_SIGNS = 3, 40


def parse(path: Path, raw: bytes) -> Bom:
    """Return what the bytes of a BOM say, as `CadDialect.bom` does."""
    raw = in_utf8(raw)
    table = read_board_file(path, raw, "the bill of materials")
    if table is None:
        table = lines_of(path, raw, "the BOM", is_bom)
    lines, header = table.lines, find_bom_header(table.lines)
    if header is None:
        names = ", ".join(BOM_COLUMNS["refdes"][:4])
        raise ConfigError(f"{path}: no line is the header of a BOM, with designators ({names}) and values or packages")
    rows = joined_rows(bom_rows(path, lines_below(lines, header), header))
    parts = _parts(path, rows, header)
    expect_unstruck(path, lines, {part.line for part in parts.values() if part.is_fitted})
    parts.notes = (*table.notes, *parts.notes, *_wrong_quantities(rows, parts))
    return parts


def _parts(path: Path, rows: Sequence[BomRow], header: PlacementHeader) -> Bom:
    found = _PartList(path)
    heading = ""
    passed: dict[str, Mapping[str, BomPart]] = {}
    asked: dict[str, FittedQuestion] = {}
    names, columns = header.names, header.columns
    fitting = fitting_of([FittedRow(*row) for row in rows], names, columns)
    usual = _usual_size(rows)
    for number, cells, row in rows:
        part = BomPart(cells.get("value", ""), cells.get("package", ""), number not in fitting.left_out, number)
        listed = cells.get("refdes", "")
        repeats = listed.casefold() == names[columns["refdes"]].casefold()
        if repeats or _is_note(filled_cells(row), listed, usual if part.is_fitted else 0):
            text = " ".join(filter(None, row))
            if says_so(text) and not re.search(r"=|:\s*\d+$|\bmark", text):  # else it is a legend, or a total
                heading = f"{number}: '{text}' heads parts that are not fitted"
            told = f"line {number}: '{visible(text[:_MOST_SIGNS])}'"
            passed[told] = {refdes: replace(part, whole=whole) for refdes, whole in designators(listed).items()}
            continue
        named = {listed: ""} if is_date(listed) else designators(listed)
        if heading and named:
            raise ConfigError(f"{path}:{heading}; say it in a column DNP of each of their lines")
        # A value may be another column's, which does not count where lines are compared.
        own = replace(part, value="".join(row[columns["value"] :][:1])) if "value" in columns else part
        found.add(listed, named, part, own)
        if question := fitting.asked.get(number):
            asked |= dict.fromkeys(named, FittedQuestion(path, number, *question))
    parts, notes = found.checked()
    bom = Bom(parts)
    bom.asked, bom.passed = asked, passed
    bom.notes = (*fitting.notes, *notes)
    bom.read_as = _read_as(path, len(parts), header)
    return bom


class _PartList:
    """The parts that the lines of a BOM name, and what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, BomPart] = {}
        self._first: dict[str, BomPart] = {}
        self._differing: dict[str, list[int]] = {}
        self._faults: dict[str, dict[int, str]] = {}

    def add(self, listed: str, named: Mapping[str, str], part: BomPart, own: BomPart) -> None:
        """Add the parts that the cell `listed` names, each with its whole word; lines are compared by their `own`."""
        if says_so(listed) and any(map(str.isdigit, listed)):
            self._faults.setdefault(_SAYS_SO, {})[part.line] = listed
        for refdes, whole in named.items():
            if fault := fault_of(refdes):
                self._faults.setdefault(fault, {}).setdefault(part.line, refdes)
            before = self._first.setdefault(refdes, own)
            if replace(before, line=own.line) != own:
                self._differing.setdefault(refdes, [before.line]).append(own.line)
            elif refdes not in self._parts or not whole:
                self._parts[refdes] = replace(self._parts.get(refdes, part), whole=whole)

    def checked(self) -> tuple[dict[str, BomPart], list[str]]:
        """Return the parts, without words that are none, and a note on these; raises ConfigError."""
        if self._faults:
            fault, wrong = next(iter(self._faults.items()))
            first = min(wrong)
            raise ConfigError(f"{self._path}:{first}: '{wrong[first]}' {fault}{further_lines([*wrong])}")
        # Wire, Label or PCB may stand in several lines, as no word of them is a designator; 134 is one of a nozzle.
        words = {
            name: lines
            for name, lines in self._differing.items()
            if any(map(str.isalpha, name)) and not _LIKE_A_NAME.search(name)
        }
        parts = {refdes: part for refdes, part in self._parts.items() if refdes not in words}
        if len(words) < len(self._differing) or len(words) > sum(map(bool, map(_LIKE_A_NAME.search, parts))):
            few = _with_lines(dict(sorted(self._differing.items(), key=lambda one: one[0] in words)))
            raise ConfigError(f"{self._path}: lines say different things of one part; correct them: {few}")
        if not parts:
            raise ConfigError(f"{self._path}: there is no part under the header of the BOM; export it again")
        told = f"lines say different things of words without a number, which do not count: {_with_lines(words)}"
        return parts, [told] if words else []


def _with_lines(names: Mapping[str, Sequence[int]]) -> str:
    return list_few(f"'{visible(name)}' (lines {', '.join(map(str, lines))})" for name, lines in names.items())


def _read_as(path: Path, parts: int, header: PlacementHeader) -> str:
    columns = ", ".join(f"{field} is '{visible(header.names[at])}'" for field, at in header.columns.items())
    unused = ", ".join(map(visible, header.unused))
    return f"{path.name}: {parts} parts; {columns}" + (f"; not read: {unused}" if unused else "")


def _usual_size(rows: Sequence[BomRow]) -> int:
    """Return how many cells most rows with designators have, if these are half of the rows that have so many; else 0.

    Example: 4 of a table whose lines have four cells, but for "Rev: B2" below them.
    """
    sizes = [(len(filled_cells(row)), bool(USUAL.match(cells.get("refdes", "")))) for _, cells, row in rows]
    usual = median_high([size for size, has_name in sizes if has_name] or [0])
    whole = [has_name for size, has_name in sizes if size >= usual]
    return usual if 2 * sum(whole) >= len(whole) else 0


def _is_note(filled: Sequence[str], listed: str, usual: int) -> bool:
    """Tell whether a row is a heading, or a line as "Rev: B2", "Total 5", or a page number, and lists no parts.

    `filled` are its cells, of which most rows have `usual`; 0 if nobody knows.
    """
    names = [*designators(listed)]
    lists = any(map(USUAL.match, names))
    has_letters = any(re.search(r"[^\W\d_]", cell) for cell in filled)  # else it is a sum, or numbers a line
    is_short = len(filled) < min(usual, 3) and (has_letters or names) and not _LIKE_A_NAME.match("".join(names[:1]))
    has_words = len(filled) == 1 and has_letters and (" " in filled[0] or says_so(filled[0]))
    has_label = 0 < len(filled) < 3 and bool(_LABEL.search(listed) or filled[0].endswith((":", "\uff1a")))
    return (
        bool(is_short and not (lists and says_so(listed)))
        or (has_words and not _LIKE_A_NAME.search(listed))
        or (has_label and not lists)
    )


def _wrong_quantities(rows: Iterable[BomRow], parts: Mapping[str, BomPart]) -> list[str]:
    """Return a note on quantities that are not the number of designators; none where all are those of several boards.

    `parts` are those of `rows`; those that are not fitted may have any quantity, and a line as "Total" has none.
    """
    found = {
        at: _QUANTITY.match(cells.get("quantity", "")) or COUNT.search(cells.get("refdes", "")) for at, cells, _ in rows
    }
    stated = {at: int(quantity["n"]) for at, quantity in found.items() if quantity}
    named: dict[int, dict[str, str]] = {}
    for refdes, part in parts.items():
        if part.is_fitted and part.line in stated and any(map(str.isdigit, refdes)):
            named.setdefault(part.line, {})[refdes] = part.whole or refdes
    wrong = [at for at, names in named.items() if stated[at] not in (len(names), len({*names.values()}))]
    boards = {stated[at] / len(names) for at, names in named.items()}
    if not wrong or (len(boards) == 1 < len(named)):
        return []
    few = list_few((f"line {at}: {stated[at]}, and {len(named[at])} named" for at in wrong), _MOST_TOLD, "; ")
    return [f"{len(wrong)} of {len(named)} quantities are not the number of designators ({few}); the designators count"]


_MOST_TITLES = 50
"""So many lines may stand above the names of columns, where none names the designators."""
_LIKE_R01 = re.compile(r"[A-Za-z]{1,4}\d{1,4}")
_IN_QUOTES = re.compile(r'\s*"(?:[^"]|"")*"(?:\s*[,;\t|!]\s*"(?:[^"]|"")*")*\s*')
"""A row each of whose cells is in quotes."""
BomRow: TypeAlias = tuple[int, dict[str, str], list[str]]
"""A `FittedRow` whose designators may go on in the next row."""


def is_bom(lines: Sequence[TextLine]) -> bool:
    """Tell whether a line above others names the columns of a BOM."""
    header = _named_header(lines)
    return header is not None and header.number < lines[-1].number


def find_bom_header(lines: Sequence[TextLine]) -> PlacementHeader | None:
    """Return the line that names the columns of a BOM; where none names the designators, they are known by their look.

    They are then in the one column that holds nothing else; so they are where the column of that name is empty, or may
    have another meaning and holds few, as a Reference of the maker beside a Location.
    """
    named = _named_header(lines)
    if named is not None and (named.separator is None or _is_believed(lines, named)):
        return named
    unnamed = {field: names for field, names in BOM_COLUMNS.items() if field != "refdes"}
    for header in [named] if named else find_headers(lines[:_MOST_TITLES], unnamed, (), ("value", "package")):
        rows = [row for row in _rows_below(lines, header) if len(filled_cells(row)) > 2]
        cells = {at: [row[at] for row in rows if at < len(row) and row[at]] for at in range(len(header.names))}
        found = [at for at in cells.keys() - {*header.columns.values()} if hold_designators(cells[at])]
        if len(found) == 1 and header.separator is not None:
            return replace(header, columns={**header.columns, "refdes": found[0]})
    return named


def _rows_below(lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[list[str]]:
    return csv.reader((line.text for line in lines_below(lines, header)), delimiter=header.separator or "\t")


def _named_header(lines: Sequence[TextLine]) -> PlacementHeader | None:
    """Return the first line with names between separators, or without one the first with names between spaces.

    A line that names nothing but a number of the maker, or a description, may be a remark: others are taken first.
    """
    best: dict[tuple[bool, bool], PlacementHeader] = {}
    for header in find_headers(lines, BOM_COLUMNS, ("refdes",), BOM_COLUMNS.keys() - {"refdes", "quantity"}):
        if header.separator is not None and not _may_be_designators(lines, header):
            continue
        others = header.columns.keys() - {"refdes", "quantity", "value"}
        is_sure = bool(others) or one_word(header.names[header.columns["value"]]) not in BOM_LAST_VALUES
        if header.separator is not None or header.is_fixed_width:
            best.setdefault((header.separator is None, not is_sure), header)
        if (False, False) in best:
            break
    return best[min(best)] if best else None


def _may_be_designators(lines: Sequence[TextLine], header: PlacementHeader) -> bool:
    """Tell whether the column of designators holds any, if its name may be that of numbers of makers, as Part #."""
    if one_word(header.names[header.columns["refdes"]]) != "part":
        return True
    return any(map(USUAL.fullmatch, _names_below(lines, header)))


def _is_believed(lines: Sequence[TextLine], header: PlacementHeader) -> bool:
    """Tell whether the column of designators holds some by its name, or if that may mean another thing, by their look.

    R01 looks so, too: beside it a column of places in a store, as A1, looks more like one.
    """
    names = _names_below(lines, header)
    if "des" in plain(header.names[header.columns["refdes"]]):
        return bool(names)
    return 0 < len(names) <= 2 * sum(_LIKE_R01.fullmatch(name) is not None for name in names)


def _names_below(lines: Sequence[TextLine], header: PlacementHeader) -> list[str]:
    """Return the designators below a header between separators."""
    at = header.columns["refdes"]
    return [name for row in _rows_below(lines, header) for cell in row[at : at + 1] for name in designators(cell)]


def bom_rows(path: Path, lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[BomRow]:
    """Yield the rows below a header; raises ConfigError, with lines, for those that cannot be divided into cells."""
    others = _other_values(header)
    if header.separator is None:
        spaced = {line.number: _spaced_row(line.text, header) for line in lines}
        # A list may go on in the next column, if the file has lists.
        if not any(row and len(designators(row[header.columns["refdes"]])) > 1 for row in spaced.values()):
            spaced = {line.number: _spaced_row(line.text, header, has_lists=False) for line in lines}
        if unclear := [number for number, row in spaced.items() if row is None]:
            raise ConfigError(
                f"{path}:{unclear[0]}: no cell begins below each name of the header; save it as CSV"
                f"{further_lines(unclear)}"
            )
        for number, cells in spaced.items():
            yield number, _by_field(cells or [], header, others), cells or []
        return
    # Cells may have line breaks, and so the lines are read as one text.
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=header.separator, skipinitialspace=True)
    table = [(lines[min(reader.line_num, len(lines)) - 1].number, row) for row in reader]
    # What stands beside the names of the header is a note behind tabs, as no list of designators has one, and where
    # all rows have as many cells as the header: a separator in a cell would have moved the others.
    named, behind = len(header.names), header.columns["refdes"] + 1
    has_notes = header.separator == "\t" or all(len(row) == header.width for _, row in table)
    widest = min((len(row) for _, row in table if len(row) >= header.width), default=header.width)
    in_quotes = {line.number for line in lines if _IN_QUOTES.fullmatch(line.text)}  # no separator moved a cell
    if wrong := [
        at
        for at, row in table
        if (at not in in_quotes and any(row[header.width if has_notes else named :]))
        or (
            USUAL.fullmatch("".join(row[behind : behind + 1]))
            and (row[widest:] or (header.separator == "," and any(row[named:])))
        )
    ]:
        raise ConfigError(
            f"{path}:{wrong[0]}: this line has more cells than the header; put a list of designators, and any other "
            f"cell with a separator, in quotes{further_lines(wrong)}"
        )
    for number, row in table:
        cells = [" ".join(cell.split()) for cell in row]
        yield number, _by_field(cells, header, others), cells


def _by_field(cells: Sequence[str], header: PlacementHeader, others: Sequence[int]) -> dict[str, str]:
    """Return the cells of a row by field; a value that is empty is that of the first of `others` that holds one."""
    found = {field: cells[index] for field, index in header.columns.items() if index < len(cells)}
    if found.get("value") == "":
        found["value"] = next((cells[at] for at in others if at < len(cells) and cells[at]), "")
    return found


def _other_values(header: PlacementHeader) -> list[int]:
    """Return the columns that hold a value where that of values is empty, the best first, but for descriptions.

    So a Comment names an IC without a Value, as EasyEDA and Altium have it.
    """
    words = ["" if at in header.columns.values() else one_word(name) for at, name in enumerate(header.names)]
    return [
        words.index(name) for name in map(one_word, BOM_COLUMNS["value"]) if name in words and name not in BOM_TEXTS
    ]


def _spaced_row(text: str, header: PlacementHeader, *, has_lists: bool = True) -> list[str] | None:
    """Return the cells of a line between spaces, below the names or with two blanks between them; None if unclear."""
    far_apart = re.split(r"\t|\s\s+", text.strip())
    if not re.search(r"\s", text.strip()):  # a title; a row may have one blank between its cells
        return [*far_apart, *[""] * (len(header.names) - 1)]
    ends = (*header.starts[1:], None)
    below = [text[start:end].strip() for start, end in zip((0, *header.starts[1:]), ends, strict=True)]
    is_cut = any(text[start - 1 : start].strip() for start in header.starts if start)
    if len(far_apart) == len(below) and (is_cut or far_apart == below):
        return [*map(unquoted, far_apart)]
    behind = ends[header.columns["refdes"]]
    goes_on = has_lists and behind and text[behind - 2 : behind].strip() and USUAL.match(text, behind)
    return None if is_cut or goes_on or len(far_apart) == len(below) else [*map(unquoted, below)]


def joined_rows(rows: Iterable[BomRow]) -> list[BomRow]:
    """Return rows, each with the designators of those that only go on with its list, as OrCAD wraps it."""
    joined: list[BomRow] = []
    for number, cells, row in rows:
        filled = [*filter(None, row)]  # in any column
        before = joined[-1][1] if joined else {}
        goes_on = len(filled) == 1 and (cells.get("refdes") or USUAL.match(filled[0]))
        if goes_on and before.get("refdes", "").endswith(","):
            before["refdes"] += filled[0]
        else:
            joined.append((number, cells, row))
    return joined


def filled_cells(row: Sequence[str]) -> list[str]:
    """Return the cells of a row that hold a letter or a digit."""
    return [cell for cell in row if re.search(r"[^\W_]", cell)]


_MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class BomPart:
    """What a BOM says of a part; `line` is its line in the file.

    `whole` is the word, as R1/R2, that is the name instead if a placement file has it.
    """

    value: str
    package: str
    is_fitted: bool
    line: int
    whole: str = ""


_UNLISTED = BomPart("", "", is_fitted=True, line=0)


class Bom(dict[str, BomPart]):
    """What a BOM says, by reference designator; `notes` are sentences on how it was read, as on hidden rows.

    `read_as` says for a person which column is what. `asked` are parts of which it leaves open whether they are fitted.
    `passed` are lines that name no part by their look, with the parts that they name if a placement file has all of
    these.
    """

    notes: tuple[str, ...] = ()
    read_as: str = ""
    passed: Mapping[str, Mapping[str, BomPart]] = {}
    asked: Mapping[str, FittedQuestion] = {}


@dataclass(frozen=True, slots=True)
class BomJoin:
    """Placements with the values and packages of a BOM, and what a person should know of the two files.

    `not_fitted` are parts that the BOM leaves out: they are not among the placements. `only_placed` and `only_listed`
    stand in one of the two files alone; those that are only placed stay.
    """

    placements: tuple[Placement, ...]
    not_fitted: tuple[str, ...]
    only_placed: tuple[str, ...]
    only_listed: tuple[str, ...]
    notes: tuple[str, ...] = ()


def join(
    placements: Sequence[Placement],
    bom: Mapping[str, BomPart],
    *,
    said: Collection[str] = (),
    not_placed: Collection[str] = (),
) -> BomJoin:
    """Return placements with the BOM's words where the placement file has none, without what is not fitted.

    A part of a BOM is that of each board of a panel whose parts are named as Board_0-R1.

    The placement file has `said` which parts are fitted, and leaves out what is `not_placed`. Raises ConfigError for
    parts of which the BOM leaves that open, and the placement file, too.
    """
    read = bom if isinstance(bom, Bom) else Bom(bom)
    placed = {place.refdes for place in placements if place.refdes}
    known = {*placed, *not_placed}
    of_board = on_boards(sorted(known - read.keys()), placements)
    named = known | of_board.keys()
    listed, notes = _listed(read, named)
    names = {refdes: part.whole if part.whole in named else refdes for refdes, part in listed.items()}
    places = {refdes: _places_of(name, known, of_board) for refdes, name in names.items()}
    parts = {place: part for refdes, part in listed.items() for place in places[refdes]}
    asked = {place: fault for refdes, fault in read.asked.items() for place in places[refdes]}
    expect_answered(fault for place, fault in asked.items() if place in placed and place not in said)
    against = [place for place in not_placed if place in parts and parts[place].is_fitted and place not in asked]
    if against:
        notes = (*notes, f"{list_few(against)}: listed as fitted, but left out of the placement file: not inspected")
    with_parts = [(place, parts.get(place.refdes, _UNLISTED)) for place in placements]
    return BomJoin(
        tuple(
            replace(place, value=place.value or part.value, package=place.package or part.package)
            for place, part in with_parts
            if part.is_fitted
        ),
        tuple(place.refdes for place, part in with_parts if not part.is_fitted),
        tuple(place.refdes for place, part in with_parts if place.refdes and part is _UNLISTED),
        tuple(refdes for refdes, part in parts.items() if refdes not in known and part.is_fitted),
        notes,
    )


def _listed(bom: Bom, named: Set[str]) -> tuple[dict[str, BomPart], tuple[str, ...]]:
    """Return what a BOM says, with the lines passed over all parts of which are `named` and in no other, and notes."""
    counted = {at: parts for at, parts in bom.passed.items() if parts and parts.keys() <= named - bom.keys()}
    listed = {**bom, **{refdes: part for parts in counted.values() for refdes, part in parts.items()}}
    left = [at for at in bom.passed if at not in counted]
    told = f"passed over, as they name no part: {list_few(left, _MOST_TOLD, '; ')}"
    return listed, (told, *bom.notes) if left else bom.notes


def _places_of(name: str, known: Collection[str], of_board: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names that a part of a BOM has on the boards of a panel; its own if none, or if it is `known`, too."""
    return [*of_board.get(name, ()), *([name] if name in known or name not in of_board else [])]
