"""The sheet of an .xlsx file that holds a table, as lines with tabs between quoted cells."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from coe.errors import ConfigError, first_line, list_few
from coe.text_table import TextLine, without_hidden
from coe.visible import visible

if TYPE_CHECKING:
    from openpyxl.workbook import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

_MOST_UNPACKED = 1 << 30
_XLSX, _ODS = b"[Content_Types].xml", b"opendocument.spreadsheet"
"""What spreadsheets have in their list of files, and in their first file, which is not packed."""
_NEEDED = re.compile(r"(?!.*(?:worksheets/_rels|chartsheets|drawings|charts|docProps)/).*\.(?:xml|rels)")
_BOUND = re.compile(rb"<((?:\w+:)?(?:pivotCaches|definedNames))\b.*?</\1>", re.DOTALL)
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)")
"""The namespaces of a strict XLSX, of which openpyxl knows the usual ones alone."""
_STYLE = re.compile(rb'\s(?:s|style)="\d+"')
_EMPTY_CELL = re.compile(rb"<(?:\w+:)?c\b(?=[^<>]*\sr=)[^<>]*/>")
_FORMULA = re.compile(
    rb"<((?:\w+:)?)c\b((?:(?!\st=\"str\")[^<>])*)>\s*<\1f\b[^<>]*(?:/>|>([^<]*)</\1f>)\s*"
    rb"(?:<\1v\s*/>|<\1v>\s*</\1v>)?\s*</\1c>"
)
"""A formula that no program has computed yet: its cell has no value, and no text that is empty."""


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a file, and what a person should know of how they were read, in sentences."""

    lines: list[TextLine]
    notes: tuple[str, ...] = field(default=())


def read_sheet(path: Path, raw: bytes, is_table: Callable[[Sequence[TextLine]], bool]) -> Table:
    """Return the one sheet that has rows, or of several that which `is_table` knows, one that is not hidden first.

    Notes tell the other sheets, and what is hidden. Raises ConfigError.
    """
    if _XLSX not in raw:
        what = "a spreadsheet of LibreOffice (.ods)" if _ODS in raw else "an archive, as of Gerber files or Numbers"
        raise ConfigError(f"{path}: it is {what}, which is not read; save the table as CSV or XLSX")
    sheets = _open(path, raw).worksheets
    lines = {sheet.title: _lines(sheet) for sheet in sheets}
    filled = [sheet for sheet in sheets if len(lines[sheet.title]) > 1]
    fitting = [sheet for sheet in filled if len(filled) == 1 or is_table(lines[sheet.title])]
    fitting = [sheet for sheet in fitting if sheet.sheet_state == "visible"] or fitting
    if len(fitting) != 1 < len(filled):
        names = ", ".join(f"'{visible(sheet.title)}'" for sheet in fitting or filled)
        raise ConfigError(f"{path}: several sheets have rows ({names}); save the one with the parts as CSV")
    if not (chosen := next(iter(fitting or sheets), None)):
        return Table([])
    others = [f"'{visible(sheet.title)}'" for sheet in filled if sheet is not chosen]
    notes = [f"the sheet '{visible(chosen.title)}' was read; not read: {', '.join(others)}"] if others else []
    return Table(lines[chosen.title], (*notes, *_hidden(chosen, lines[chosen.title])))


def _open(path: Path, raw: bytes) -> Workbook:
    """Return a workbook of values and styles; raises ConfigError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and the like, which nobody needs
            try:
                return _load(raw)
            except IndexError:  # some programs write no styles, and name them
                return _load(raw, styled=False)
    except Exception as error:  # of a library that reads a foreign file
        raise ConfigError(
            f"{path}: the spreadsheet cannot be read ({first_line(error):.200}); save it as CSV"
        ) from error


def _load(raw: bytes, *, styled: bool = True) -> Workbook:
    import openpyxl

    needed = BytesIO()
    with zipfile.ZipFile(BytesIO(raw)) as old, zipfile.ZipFile(needed, "w") as new:
        parts = [part for part in old.infolist() if _NEEDED.fullmatch(part.filename)]
        if sum(part.file_size for part in parts) > _MOST_UNPACKED:
            raise ValueError("it unpacks to more than 1 GiB")
        for part in parts:
            xml = _filled(_STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006", old.read(part)))
            new.writestr(part.filename, xml if styled or b"sheetData>" not in xml else _STYLE.sub(b"", xml))
    return openpyxl.load_workbook(needed, data_only=True, keep_links=False)


def _filled(xml: bytes) -> bytes:
    """Return the XML of a sheet up to its last value, without empty cells; formats may reach the last of its rows.

    A formula without a value is the text of its cell.
    """
    xml = _FORMULA.sub(rb'<\1c\2 t="inlineStr"><\1is><\1t>=\3</\1t></\1is></\1c>', xml)
    end = xml.rfind(b"sheetData>")
    close = xml.rfind(b"</", 0, max(end, 0))
    if close < 0:
        return _BOUND.sub(b"", xml) if end < 0 and b"<sheets" in xml else xml
    prefix = xml[close + 2 : end]
    last = max(xml.rfind(b"</" + prefix + tag + b">", 0, close) for tag in (b"v", b"is"))
    at = xml.find(b"sheetData>") + 10 if last < 0 else xml.find(b"row>", last) + 4
    return _EMPTY_CELL.sub(b"", xml[:at]) + xml[close : end + 10] + xml[xml.rfind(b"</") :]


def _lines(sheet: Worksheet) -> list[TextLine]:
    """Return the rows of a sheet in which a cell has a value, each with a cell for each column that has one."""
    rows: dict[int, dict[int, str]] = {}
    struck = set()
    for cell in sheet._cells.values():  # to ask a sheet for its rows would make all cells between them
        if cell.value is not None and (text := " ".join(without_hidden(str(cell.value)).split())):
            rows.setdefault(cell.row, {})[cell.column] = text
            struck |= {cell.row} if cell.font is not None and cell.font.strike else set()
    columns = sorted({column for row in rows.values() for column in row})
    quoted = {
        number: "\t".join('"' + row.get(column, "").replace('"', '""') + '"' for column in columns)
        for number, row in sorted(rows.items())
    }
    return [TextLine(number, text, number in struck) for number, text in quoted.items()]


def _hidden(sheet: Worksheet, lines: Iterable[TextLine]) -> list[str]:
    """Return notes on a sheet that is hidden, on its rows and columns that are, and on formulas without a result."""
    from openpyxl.utils import get_column_letter

    title = visible(sheet.title)
    rows = [str(line.number) for line in lines if sheet.row_dimensions[line.number].hidden]
    spans = [span for span in sheet.column_dimensions.values() if span.hidden]
    columns = [
        get_column_letter(at)
        for at in range(1, sheet.max_column + 1)
        if any((span.min or 0) <= at <= (span.max or 0) for span in spans)
    ]
    formulas = [cell.coordinate for cell in sheet._cells.values() if re.match("=(?!=)", str(cell.value))]
    notes = [f"the sheet '{title}' is hidden, and was read"] if sheet.sheet_state != "visible" else []
    notes += [
        f"hidden {noun} of the sheet '{title}' were read as well ({list_few(names)}); take out what is not meant, as "
        "behind a filter"
        for noun, names in (("rows", rows), ("columns", columns))
        if names
    ]
    if formulas:
        few = list_few(formulas)
        notes.append(f"formulas of the sheet '{title}' have no result yet ({few}); save it in a spreadsheet program")
    return notes
