"""Bills of materials (BOM): value and package of each part, and which parts are not fitted, beside a placement file.

A line is of one kind of part, with all its designators: "R1,R2", "R1-R4", "C1 C2".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_high

from coe.bring.parts import safe_xml
from coe.bring.parts.board_files import read_board_file
from coe.bring.parts.bom_join import Bom, BomPart
from coe.bring.parts.bom_table import BomRow, bom_rows, filled_cells, find_bom_header, is_bom, joined_rows
from coe.bring.parts.not_fitted import FittedRow, fitting_of, says_so
from coe.bring.parts.other_cad_files import expect_list
from coe.bring.parts.placement_file import FittedQuestion
from coe.bring.parts.placement_header import PlacementHeader, lines_below
from coe.bring.parts.refdes import COUNT, USUAL, designators, fault_of, is_date
from coe.bring.parts.table_file import expect_unstruck, lines_of
from coe.bring.parts.text_table import further_lines, in_utf8
from coe.bring.parts.vocabulary import BOM_COLUMNS
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_XML = re.compile(rb"^\s*(?:\xef\xbb\xbf)?\s*<(?:\?xml|export)")
_QUANTITY = re.compile(r"\s*(?P<n>\d+)(?:[.,]0+)?(?![\d.,])")
_LIKE_A_NAME = re.compile(r"[^\W\d_]+[_-]?\d")
_LABEL = re.compile(r":\s|\uff1a")
_SAYS_SO = "says that a part is not fitted; give that part a line, and say it there in a column DNP"
_MOST_TOLD, _MOST_SIGNS = 3, 40


def parse(path: Path, raw: bytes) -> Bom:
    """Return what the bytes of a BOM say, as `CadDialect.bom` does."""
    raw = in_utf8(raw)
    if board := read_board_file(path, raw):
        table = board.table
    else:
        expect_list(path, raw, "the bill of materials")
        if _XML.match(raw):
            return _parts(path, [*_of_netlist(path, raw)])
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


def _of_netlist(path: Path, raw: bytes) -> Iterator[BomRow]:
    """Yield the components of the XML from which KiCad makes BOMs; a property, and a field, may leave one out."""
    for number, part in enumerate(safe_xml.parse(path, raw, "a BOM").iter("comp"), 1):
        said = [element.get("value", "") for element in part.iter("property") if element.get("name") != "dnp"]
        said += [element.text or "" for element in part.iter("field")]
        cells = {"refdes": part.get("ref", ""), "value": part.findtext("value", "")}
        cells |= {"package": part.findtext("footprint", "").rpartition(":")[2]}
        if any(element.get("name") == "dnp" for element in part.iter("property")):
            cells["left_out"] = "yes"
        yield number, cells, said


def _parts(path: Path, rows: Sequence[BomRow], header: PlacementHeader | None = None) -> Bom:
    found = _PartList(path)
    heading = ""
    passed: dict[str, Mapping[str, BomPart]] = {}
    asked: dict[str, FittedQuestion] = {}
    names, columns = ((), {}) if header is None else (header.names, header.columns)
    fitting = fitting_of([FittedRow(*row) for row in rows], names, columns)
    usual = _usual_size(rows)
    for number, cells, row in rows:
        part = BomPart(cells.get("value", ""), cells.get("package", ""), number not in fitting.left_out, number)
        listed = cells.get("refdes", "")
        repeats = bool(names) and listed.casefold() == names[columns["refdes"]].casefold()
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
    bom.read_as = _read_as(path, len(parts), header) if header else ""
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
