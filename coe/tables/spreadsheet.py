"""The sheet of a spreadsheet that holds a table, as lines with tabs between quoted cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coe.errors import ConfigError, first_line, list_few
from coe.tables.spreadsheet_forms import Sheet, of_ods, of_xls, of_xlsx
from coe.text_table import TextLine, of_sheet
from coe.visible import visible

_FIRST = 256
_XLSX, _ODS = b"[Content_Types].xml", b"opendocument.spreadsheet"
"""What spreadsheets have in their list of files, and in their first file, which is not packed."""
_IN_OLE = ("Workbook", "Book", "EncryptedPackage")
OLE = b"\xd0\xcf\x11\xe0"
"""How files of old Excel begin, and boards of Altium."""


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a file, and what a person should know of how they were read, in sentences.

    `edge` are points on the edge of a board, in mm, if its file tells them.
    """

    lines: list[TextLine]
    notes: tuple[str, ...] = field(default=())
    edge: tuple[tuple[float, float], ...] = field(default=())


def read_sheet(path: Path, raw: bytes, is_table: Callable[[Sequence[TextLine]], bool]) -> Table:
    """Return the sheet that `path` names, or the one that has rows, or of several that which `is_table` knows.

    Of these it is one that is not hidden. Notes tell the other sheets, and what is hidden. Raises ConfigError.
    """
    sheets = [*_sheets(path, raw)]
    lines = {sheet.title: _lines(sheet) for sheet in sheets}
    filled = [sheet for sheet in sheets if len(lines[sheet.title]) > 1]
    fitting = [sheet for sheet in filled if len(filled) == 1 or is_table(lines[sheet.title])]
    fitting = [sheet for sheet in fitting if not sheet.is_hidden] or fitting
    file, wanted = of_sheet(path)
    if wanted:
        fitting = [sheet for sheet in filled if sheet.title.casefold() == wanted.casefold()]
    if filled and len(fitting) != 1 and (wanted or len(filled) > 1):
        names = ", ".join(f"'{visible(sheet.title)}'" for sheet in fitting or filled)
        what = f"it has no sheet '{visible(wanted)}' with rows, but these" if wanted else "several sheets have rows"
        title = visible((fitting or filled)[0].title)
        raise ConfigError(
            f"{path}: {what} ({names}); name the one with the parts, as '{file.name}#{title}', or save it as CSV"
        )
    if not (chosen := next(iter(fitting or sheets), None)):
        return Table([])
    others = [f"'{visible(sheet.title)}'" for sheet in filled if sheet is not chosen]
    notes = [f"the sheet '{visible(chosen.title)}' was read; not read: {', '.join(others)}"] if others else []
    return Table(lines[chosen.title], (*notes, *_hidden(chosen)))


def _sheets(path: Path, raw: bytes) -> list[Sheet]:
    """Return the sheets of a file; raises ConfigError."""
    if raw.startswith(OLE) and not any(name.encode("utf-16-le") in raw for name in _IN_OLE):
        raise ConfigError(f"{path}: it is a board of Altium, or a document, which is not read; export a table as CSV")
    try:
        if raw.startswith(OLE):
            return [*of_xls(raw)]
        if _ODS in raw[:_FIRST]:
            return [*of_ods(path, raw)]
        if _XLSX in raw:
            return [*of_xlsx(raw)]
    except ConfigError:
        raise
    except Exception as error:  # of a library that reads a foreign file
        raise ConfigError(
            f"{path}: the spreadsheet cannot be read ({first_line(error):.200}); save it as CSV"
        ) from error
    raise ConfigError(
        f"{path}: it is an archive, as of Gerber files or Numbers, which is not read; save the table as CSV"
    )


def _lines(sheet: Sheet) -> list[TextLine]:
    """Return the rows of a sheet in which a cell has a value, each with a cell for each column that has one."""
    rows: dict[int, dict[int, str]] = {}
    for (row, column), text in sheet.cells.items():
        rows.setdefault(row, {})[column] = text
    columns = sorted({column for row in rows.values() for column in row})
    return [
        TextLine.of_cells(number, (row.get(column, "") for column in columns), is_struck=number in sheet.struck_rows)
        for number, row in sorted(rows.items())
    ]


def _hidden(sheet: Sheet) -> list[str]:
    """Return notes on a sheet that is hidden, on its rows and columns that are, and on formulas without a result."""
    from openpyxl.utils import get_column_letter

    title = visible(sheet.title)
    rows, columns = ({place[axis] for place in sheet.cells} for axis in (0, 1))
    last = max(columns, default=0)
    formulas = [
        f"{get_column_letter(column)}{row}" for (row, column), text in sheet.cells.items() if re.match("=(?!=)", text)
    ]
    notes = [f"the sheet '{title}' is hidden, and was read"] if sheet.is_hidden else []
    if not sheet.has_formats:
        notes.append(f"the formats of the sheet '{title}' cannot be read: no row counts as struck out")
    notes += [
        f"hidden {noun} of the sheet '{title}' were read as well ({list_few(names)}); take out what is not meant, as "
        "behind a filter"
        for noun, names in (
            ("rows", [*map(str, sorted(rows & sheet.hidden_rows))]),
            ("columns", [get_column_letter(at) for at in sorted(sheet.hidden_columns) if 0 < at <= last]),
        )
        if names
    ]
    if formulas:
        few = list_few(formulas)
        notes.append(f"formulas of the sheet '{title}' have no result yet ({few}); save it in a spreadsheet program")
    return notes
