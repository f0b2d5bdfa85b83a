"""Bills of materials (BOM): value and package of each part, and which parts are not fitted, beside a placement file.

A line is of one kind of part, with all its designators: "R1,R2", "R1-R4", "C1 C2".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from coe import text_table
from coe.cad import safe_xml
from coe.cad.cad_tables import expect_unstruck, lines_of
from coe.cad.other_cad_files import expect_list
from coe.cad.placement_header import PlacementHeader, find_headers, lines_below
from coe.cad.refdes import COUNT, USUAL, designators, fault_of, is_date
from coe.cad.spaced_row import unquoted
from coe.cad.vocabulary import COLUMNS as VOCABULARY
from coe.cad.vocabulary import one_word
from coe.errors import ConfigError, list_few
from coe.not_fitted import FITTED, LEFT_OUT, FittedRow, fitting_of, says_so
from coe.placement.bom_join import Bom, BomPart
from coe.placement.placement_file import FittedQuestion
from coe.text_table import further_lines
from coe.visible import visible

_ROWS_OR_TYPES = (
    "comp name",
    "placement id",
    "id",
    "name",
    "part",
    "part id",
    "part name",
    "component name",
    "component",
    "bauteil",
)
"""Columns of placement files that in a BOM are a number of the line, or a kind of part."""
_BY_MAKERS = (
    *("manufacture part number seeed sku", "mpn", "manufacturer mpn"),
    *(
        f"{maker} {what}"
        for maker in ("manufacturer", "manufacture", "mfr", "mfg")
        for what in ("part number", "part no", "part", "pn", "p n")
    ),
    "description",
)
_LAST_VALUES = {one_word(name) for name in _BY_MAKERS}
"""What is the value of a part where nothing else is."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "refdes": (
        *("designator", "designators", "reference", "references", "refdes", "ref", "refs", "parts", "part reference"),
        *("reference s", "ref s", "top designator", "bezeichnung", "bauteile"),
        *(name for name in VOCABULARY["refdes"] if name not in _ROWS_OR_TYPES),
        "part",
    ),
    "value": ("value", "val", "comment", "designation", "name", *VOCABULARY["value"], "part", *_BY_MAKERS),
    "package": (*VOCABULARY["package"][:-2], "case package"),
    "left_out": LEFT_OUT,
    "config": ("config",),
    "quantity": VOCABULARY["quantity"],
    "fitted": FITTED,
}
_XML = re.compile(rb"^\s*(?:\xef\xbb\xbf)?\s*<(?:\?xml|export)")
_QUANTITY = re.compile(r"\s*(?P<n>\d+)(?:[.,]0+)?(?![\d.,])")
_LIKE_A_NAME = re.compile(r"[^\W\d_][^\s:\uff1a]*\d|^[\d\W]+$")
"""A letter and then a number in one word, or numbers alone."""
_LABEL = re.compile(r":\s|\uff1a")
_MOST_TOLD, _MOST_SIGNS = 3, 40
_Row: TypeAlias = tuple[int, dict[str, str], list[str]]
"""A `FittedRow` whose designators may go on in the next row."""


def parse(path: Path, raw: bytes) -> Bom:
    """Return what the bytes of a BOM say, as `CadDialect.bom` does."""
    expect_list(path, raw, "the bill of materials")
    if _XML.match(raw):
        return _parts(path, [*_of_netlist(path, raw)])
    table = lines_of(path, raw, "the BOM", is_bom)
    lines, header = table.lines, _header(table.lines)
    if header is None:
        names = ", ".join(COLUMNS["refdes"][:4])
        raise ConfigError(f"{path}: no line is the header of a BOM, with designators ({names}) and values or packages")
    rows = _joined(_rows(path, lines_below(lines, header), header))
    parts = _parts(path, rows, header)
    expect_unstruck(path, lines, {part.line for part in parts.values() if part.is_fitted})
    parts.notes = (*table.notes, *parts.notes, *_wrong_quantities(rows, parts))
    return parts


def is_bom(lines: Sequence[text_table.TextLine]) -> bool:
    """Tell whether a line names the columns of a BOM."""
    return _header(lines) is not None


def _header(lines: Sequence[text_table.TextLine]) -> PlacementHeader | None:
    """Return the first line with names between separators, or without one the first with names between spaces.

    A line that names nothing but a number of the maker, or a description, may be a remark: others are taken first.
    """
    best: dict[tuple[bool, bool], PlacementHeader] = {}
    for header in find_headers(lines, COLUMNS, ("refdes",), COLUMNS.keys() - {"refdes", "quantity"}):
        others = header.columns.keys() - {"refdes", "quantity", "value"}
        is_sure = bool(others) or one_word(header.names[header.columns["value"]]) not in _LAST_VALUES
        if header.separator is not None or header.is_fixed_width:
            best.setdefault((header.separator is None, not is_sure), header)
        if (False, False) in best:
            break
    return best[min(best)] if best else None


def _rows(path: Path, lines: Sequence[text_table.TextLine], header: PlacementHeader) -> Iterator[_Row]:
    if header.separator is None:
        for line in lines:
            if (row := _spaced_row(line.text, header)) is None:
                raise ConfigError(f"{path}:{line.number}: no cell begins below each name of the header; save it as CSV")
            yield line.number, {field: row[index] for field, index in header.columns.items()}, row
        return
    # Cells may have line breaks, and so the lines are read as one text.
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=header.separator, skipinitialspace=True)
    table = [(lines[min(reader.line_num, len(lines)) - 1].number, row) for row in reader]
    # What stands beside the names of the header is a note behind tabs, as no list of designators has one, and where
    # all rows have as many cells as the header: a separator in a cell would have moved the others.
    named, behind = len(header.names), header.columns["refdes"] + 1
    has_notes = header.separator == "\t" or all(len(row) == header.width for _, row in table)
    widest = min((len(row) for _, row in table if len(row) >= header.width), default=header.width)
    if wrong := [
        at
        for at, row in table
        if any(row[header.width if has_notes else named :])
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
        yield number, {field: cells[index] for field, index in header.columns.items() if index < len(cells)}, cells


def _spaced_row(text: str, header: PlacementHeader) -> list[str] | None:
    """Return the cells of a line between spaces, below the names or with two blanks between them; None if unclear."""
    far_apart = re.split(r"\t|\s\s+", text.strip())
    ends = (*header.starts[1:], None)
    below = [text[start:end].strip() for start, end in zip((0, *header.starts[1:]), ends, strict=True)]
    is_cut = any(text[start - 1 : start].strip() for start in header.starts if start)
    if len(far_apart) == len(below) and (is_cut or far_apart == below):
        return [*map(unquoted, far_apart)]
    behind = ends[header.columns["refdes"]]
    goes_on = behind and text[behind - 2 : behind].strip() and USUAL.match(text, behind)
    return None if is_cut or goes_on or len(far_apart) == len(below) else [*map(unquoted, below)]


def _of_netlist(path: Path, raw: bytes) -> Iterator[_Row]:
    """Yield the components of the XML from which KiCad makes BOMs; a property, and a field, may leave one out."""
    for number, part in enumerate(safe_xml.parse(path, raw, "a BOM").iter("comp"), 1):
        said = [element.get("value", "") for element in part.iter("property") if element.get("name") != "dnp"]
        said += [element.text or "" for element in part.iter("field")]
        cells = {"refdes": part.get("ref", ""), "value": part.findtext("value", "")}
        cells |= {"package": part.findtext("footprint", "").rpartition(":")[2]}
        if any(element.get("name") == "dnp" for element in part.iter("property")):
            cells["left_out"] = "yes"
        yield number, cells, said


def _joined(rows: Iterable[_Row]) -> list[_Row]:
    """Return rows, each with the designators of those that only go on with its list, as OrCAD wraps it."""
    joined: list[_Row] = []
    for number, cells, row in rows:
        listed = cells.get("refdes", "")
        before = joined[-1][1] if joined else {}
        if listed and before.get("refdes", "").endswith(",") and [*filter(None, row)] == [listed]:
            before["refdes"] += listed
        else:
            joined.append((number, cells, row))
    return joined


def _parts(path: Path, rows: Sequence[_Row], header: PlacementHeader | None = None) -> Bom:
    parts = Bom()
    heading = ""
    passed: list[str] = []
    named_in: dict[int, dict[str, str]] = {}
    names, columns = ((), {}) if header is None else (header.names, header.columns)
    fitting = fitting_of([FittedRow(*row) for row in rows], names, columns)
    for number, cells, row in rows:
        part = BomPart(cells.get("value", ""), cells.get("package", ""), number not in fitting.left_out, number)
        listed = cells.get("refdes", "")
        repeats = bool(names) and listed.casefold() == names[columns["refdes"]].casefold()
        if repeats or _is_note(row, listed):
            text = " ".join(filter(None, row))
            if says_so(text) and not re.search(r"=|:\s*\d+$|\bmark", text):  # else it is a legend, or a total
                heading = f"{number}: '{text}' heads parts that are not fitted"
            passed.append(f"line {number}: '{visible(text[:_MOST_SIGNS])}'")
            continue
        named = named_in[number] = {listed: ""} if is_date(listed) else designators(listed)
        if heading and named:
            raise ConfigError(f"{path}:{heading}; say it in a column DNP of each of their lines")
        if says_so(listed) and any(map(str.isdigit, listed)):
            raise ConfigError(
                f"{path}:{number}: '{listed}' says that a part is not fitted; give that part a line, and say it there "
                "in a column DNP"
            )
        for refdes, whole in named.items():
            if fault := fault_of(refdes):
                raise ConfigError(f"{path}:{number}: '{refdes}' {fault}")
            before = parts.get(refdes, part)
            if replace(before, line=number, whole="") != part:
                raise ConfigError(
                    f"{path}:{number}: '{refdes}' stands in line {before.line} with other words; correct one"
                )
            if refdes not in parts or not whole:
                parts[refdes] = replace(before, whole=whole)
    if not parts:
        raise ConfigError(f"{path}: there is no part under the header of the BOM; export it again")
    asked = {number: FittedQuestion(path, number, fault) for number, fault in fitting.asked.items()}
    parts.asked = {refdes: asked[number] for number in asked for refdes in named_in.get(number, ())}
    told = [f"passed over, as they name no part: {list_few(passed, _MOST_TOLD, '; ')}"] if passed else []
    if "value" in columns and one_word(name := names[columns["value"]]) in _LAST_VALUES:
        told.append(f"no column is named Value: the values are those of '{visible(name)}'")
    parts.notes = (*told, *fitting.notes)
    return parts


def _is_note(row: Sequence[str], listed: str) -> bool:
    """Tell whether a row is a heading, or a line as "Date: 2024-01-31" or "Total 5", and lists no parts."""
    filled = [*filter(re.compile(r"[^\W_]").search, row)]
    is_heading = len(filled) == 1 and (" " in filled[0] or says_so(filled[0])) and not _LIKE_A_NAME.search(listed)
    has_label = 0 < len(filled) < 3 and bool(_LABEL.search(listed) or filled[0].endswith((":", "\uff1a")))
    return is_heading or (has_label and not any(map(USUAL.match, designators(listed))))


def _wrong_quantities(rows: Iterable[_Row], parts: Mapping[str, BomPart]) -> list[str]:
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
