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
from coe.cad.refdes import COMMA, TO, USUAL, fault_of, is_date
from coe.cad.spaced_row import unquoted
from coe.cad.vocabulary import COLUMNS as VOCABULARY
from coe.errors import ConfigError, list_few
from coe.not_fitted import FITTED, LEFT_OUT, FittedRow, fitting_of, says_so
from coe.placement.bom_join import Bom, BomPart
from coe.placement.placement_file import FittedQuestion
from coe.text_table import further_lines

_ROWS_OR_TYPES = (
    "comp name",
    "placement id",
    "id",
    "name",
    "part",
    "part id",
    "part name",
    "component name",
    "bauteil",
)
"""Columns of placement files that in a BOM are a number of the line, or a kind of part."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "refdes": (
        *("designator", "designators", "reference", "references", "refdes", "ref", "refs", "parts", "part reference"),
        *("reference s", "ref s", "top designator", "bezeichnung", "part designator", "bauteile"),
        *(name for name in VOCABULARY["refdes"] if name not in _ROWS_OR_TYPES),
        "part",
    ),
    "value": (
        *("value", "val", "comment", "designation", "name", *VOCABULARY["value"], "part"),
        "manufacture part number seeed sku",
    ),
    "package": (*VOCABULARY["package"][:-2], "case package"),
    "left_out": LEFT_OUT,
    "config": ("config",),
    "quantity": VOCABULARY["quantity"],
    "fitted": FITTED,
}
_XML = re.compile(rb"^\s*(?:\xef\xbb\xbf)?\s*<(?:\?xml|export)")
_RANGE = re.compile(rf"(?<![A-Za-z_])([A-Za-z_]++)(\d++)\s*{TO}\s*([A-Za-z_]*)(\d+)", re.IGNORECASE)
_BETWEEN = re.compile(rf"(?:\s|{COMMA}|(?<!\b[A-Za-z])&)+")
"""S&H1 is one part, and R1&R2 are two."""
_JOINED = re.compile(r"([A-Za-z_]+)\d+(?:[/+]\1\d+)+", re.IGNORECASE)
"""R1/R2 are two parts if no part has this name; 1/R1 and A1/R1 are a part of a board of a panel."""
_AND_NUMBER = rf"\s*(?:{COMMA}|&)\s*(?=\d)"
_SHORT = re.compile(rf"\b([A-Za-z_]+)\d+(?:{_AND_NUMBER}\d+(?![\w/.]))+")
"""C1,2,3 are three parts, and C1-3,5-7 are six."""
_COUNT = re.compile(
    r"(?P<space>\s*)[(\[\uff08]\s*[x×]?\s*(?P<n>\d+)\s*(?:[x×个只]|pcs?\.?|pieces?|st(?:k|ück)?\.?|ea)?\s*[)\]\uff09]\s*$",
    re.IGNORECASE,
)
"""R1,R2 (2) are two parts."""
_QUANTITY = re.compile(r"\s*(?P<n>\d+)(?:[.,]0+)?(?![\d.,])")
_MOST_TOLD = 3
_AND = {"and", "und", "et"}
_MOST_IN_RANGE = 1000
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
    """Return the first line with names between separators, or without one the first with names between spaces."""
    spaced: PlacementHeader | None = None
    for header in find_headers(lines, COLUMNS, ("refdes",), COLUMNS.keys() - {"refdes", "quantity"}):
        if header.separator is not None:
            return header
        if spaced is None and header.is_fixed_width:
            spaced = header
    return spaced


def _rows(path: Path, lines: Sequence[text_table.TextLine], header: PlacementHeader) -> Iterator[_Row]:
    if header.separator is None:
        for line in lines:
            if any(line.text[start - 1 : start].strip() for start in header.starts if start):
                raise ConfigError(f"{path}:{line.number}: no cell begins below each name of the header; save it as CSV")
            ends = (*header.starts[1:], None)
            row = [
                unquoted(line.text[start:end].strip()) for start, end in zip((0, *header.starts[1:]), ends, strict=True)
            ]
            yield line.number, {field: row[index] for field, index in header.columns.items()}, row
        return
    # Cells may have line breaks, and so the lines are read as one text.
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=header.separator, skipinitialspace=True)
    table = [(lines[min(reader.line_num, len(lines)) - 1].number, row) for row in reader]
    # Behind tabs, what stands beside the names of the header is a note: no list of designators has a tab.
    width = header.width if header.separator == "\t" else len(header.names)
    widest = min((len(row) for _, row in table if len(row) >= header.width), default=header.width)
    behind = header.columns["refdes"] + 1
    if wrong := [at for at, row in table if any(row[width:]) or (row[widest:] and USUAL.fullmatch(row[behind]))]:
        raise ConfigError(
            f"{path}:{wrong[0]}: this line has more cells than the header; put a list of designators, and any other "
            f"cell with a separator, in quotes{further_lines(wrong)}"
        )
    for number, row in table:
        cells = [" ".join(cell.split()) for cell in row]
        yield number, {field: cells[index] for field, index in header.columns.items() if index < len(cells)}, cells


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
    named_in: dict[int, dict[str, str]] = {}
    names, columns = ((), {}) if header is None else (header.names, header.columns)
    fitting = fitting_of([FittedRow(*row) for row in rows], names, columns)
    for number, cells, row in rows:
        part = BomPart(cells.get("value", ""), cells.get("package", ""), number not in fitting.left_out, number)
        listed = cells.get("refdes", "")
        if not any(map(str.isdigit, listed)) and len(filled := [*filter(None, row)]) == 1 and says_so(filled[0]):
            if not re.search(r"=|\bmark", filled[0]):  # else it is a legend
                heading = f"{number}: '{filled[0]}' heads parts that are not fitted"
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
    parts.notes = fitting.notes
    return parts


def _wrong_quantities(rows: Iterable[_Row], parts: Mapping[str, BomPart]) -> list[str]:
    """Return a note on quantities that are not the number of designators; none where all are those of several boards.

    `parts` are those of `rows`; those that are not fitted may have any quantity, and a line as "Total" has none.
    """
    found = {
        at: _QUANTITY.match(cells.get("quantity", "")) or _COUNT.search(cells.get("refdes", ""))
        for at, cells, _ in rows
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


def designators(text: str) -> dict[str, str]:
    """Return the reference designators of a cell, each with the word that may be one name instead, or "".

    A number in brackets behind them is how many they are; without a space before it may be of a name.
    Example: `designators("R1-R2, C7/C8 (4)")` is `{"R1": "", "R2": "", "C7": "C7/C8", "C8": "C7/C8"}`.
    """
    text = " ".join(text.split())
    count = _COUNT.search(text)
    counted = {} if count is None else _names_in(text[: count.start()])
    is_count = count is not None and counted and (count["space"] or int(count["n"]) == len(counted))
    return counted if is_count else _names_in(text)


def _names_in(text: str) -> dict[str, str]:
    found: dict[str, str] = {}

    def range_of(match: re.Match[str]) -> str:
        prefix, first, other, last = match.groups()
        low, high = int(first), int(last)
        if other not in ("", prefix) or not 0 < high - low < _MOST_IN_RANGE:
            return match[0]
        return " ".join(f"{prefix}{number:0{len(first)}}" for number in range(low, high + 1))

    text = _RANGE.sub(range_of, text)
    text = _SHORT.sub(lambda match: re.sub(_AND_NUMBER, f",{match[1]}", match[0]), text)
    for word in _BETWEEN.split(_RANGE.sub(range_of, text)):
        if re.search(r"[^\W_]", word) and word.casefold() not in _AND:
            is_joined = _JOINED.fullmatch(word) is not None
            for name in re.split("[/+]", word) if is_joined else [word]:
                found.setdefault(name, word if is_joined else "")
    return found
