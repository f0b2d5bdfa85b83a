"""Tables as people get them from CAD programs: text in any usual encoding, and spreadsheets, as lines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from coe import text_table
from coe.errors import ConfigError, first_line
from coe.text_table import TextLine
from coe.visible import visible

_ENCODINGS = ("cp1252", "gb18030", "cp1250", "cp1251", "shift_jis", "euc_kr")
"""What programs for Windows write if they write no UTF-8, western first, as a value with a micro sign."""
_MOST_TOLD = 5
_ZIP = b"PK\x03\x04"
_XLSX, _ODS = b"[Content_Types].xml", b"opendocument.spreadsheet"
"""What spreadsheets have in their list of files, and in their first file, which is not packed."""
_STRUCK = "\0"


def lines_of(path: Path, raw: bytes, noun: str, is_table: Callable[[Sequence[TextLine]], bool]) -> list[TextLine]:
    """Return the lines of a text, or the rows of a spreadsheet as lines; raises ConfigError, which calls it `noun`.

    What is no UTF-8 is read in the first encoding in which `is_table` knows its columns.
    """
    if raw.startswith(_ZIP):
        return _sheet(path, raw)
    readings: list[list[TextLine]] = []
    for encoding in _ENCODINGS:
        try:
            lines = text_table.parse(path, raw, noun, encoding)
        except ConfigError:
            if encoding == _ENCODINGS[-1] and not readings:
                raise
            continue
        if lines not in readings:
            if is_table(lines):
                return lines
            readings.append(lines)
    return readings[0]


def _struck(cell: Any) -> str:
    """Return the mark of a cell whose text is struck out; "" for another."""
    with suppress(IndexError):  # some programs write no styles, and name them
        return _STRUCK if cell.font is not None and cell.font.strike else ""
    return ""


def _sheet(path: Path, raw: bytes) -> list[TextLine]:
    """Return the rows of the one sheet of an .xlsx file that has any, as lines with tabs between quoted cells."""
    import openpyxl

    if _XLSX not in raw:
        what = "a spreadsheet of LibreOffice (.ods)" if _ODS in raw else "an archive, as of Gerber files or Numbers"
        raise ConfigError(f"{path}: it is {what}, which is not read; save the table as CSV or XLSX")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and the like, which nobody needs
            book = openpyxl.load_workbook(BytesIO(raw), read_only=True, data_only=True)
        sheets = {
            sheet.title: [
                ["" if cell.value is None else _struck(cell) + str(cell.value) for cell in row]
                for row in sheet.iter_rows()
            ]
            for sheet in book.worksheets
        }
    except Exception as error:  # of a library that reads a foreign file
        raise ConfigError(
            f"{path}: the spreadsheet cannot be read ({first_line(error):.200}); save it as CSV"
        ) from error
    filled = {title: table for title, table in sheets.items() if sum(any(row) for row in table) > 1}
    if len(filled) > 1:
        names = ", ".join(f"'{visible(title)}'" for title in filled)
        raise ConfigError(f"{path}: several sheets have rows ({names}); save the one with the parts as CSV")
    table = next(iter(filled.values()), next(iter(sheets.values()), []))
    lines = [TextLine(number, _text_of(row), any(map(_is_struck, row))) for number, row in enumerate(table, 1)]
    return [line for line in lines if line.text.strip('"\t')]


def _is_struck(cell: str) -> bool:
    return cell.startswith(_STRUCK)


def _text_of(row: Sequence[str]) -> str:
    cells = [" ".join(cell.removeprefix(_STRUCK).split()) for cell in row]
    return "\t".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def expect_unstruck(path: Path, lines: Sequence[TextLine], fitted: Collection[int]) -> None:
    """Raise ConfigError if lines are struck out of which the parts are fitted, by their numbers."""
    if struck := [line.number for line in lines if line.is_struck and line.number in fitted]:
        raise ConfigError(
            f"{path}:{struck[0]}: cells of this row are struck out; take the row out, or their text, or say in a "
            f"column DNP that the part is not fitted{further_lines(struck)}"
        )


def further_lines(lines: Sequence[int]) -> str:
    """Return which lines but the first have the same fault, behind its sentence."""
    if len(lines) == 1:
        return ""
    few = ", ".join(map(str, lines[1:_MOST_TOLD])) + (" ..." if len(lines) > _MOST_TOLD else "")
    return f" (so are {len(lines) - 1} further lines: {few})"
