"""The table of a bill of materials (BOM): its columns, and its rows between separators or spaces."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from coe.bring.parts.placement_header import PlacementHeader, find_headers, lines_below
from coe.bring.parts.refdes import USUAL, designators, hold_designators
from coe.bring.parts.spaced_row import unquoted
from coe.bring.parts.text_table import TextLine, further_lines
from coe.bring.parts.vocabulary import BOM_COLUMNS, BOM_LAST_VALUES, BOM_TEXTS, one_word, plain
from coe.errors import ConfigError

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
