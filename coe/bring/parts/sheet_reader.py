"""Reads a spreadsheet (.xlsx, .xls, .ods) in a process of its own, which may take so much memory and time and no more.

`text_table.py` runs this file as a program: the spreadsheet is its input, its output JSON, as `main` says. A file of
some kB may unpack to GB, and `python-calamine` makes a table of all cells up to the farthest: whatever a file is made
for, only this process ends. calamine reads the values of cells. Which rows and columns are hidden, which cells are
struck out, errors, and formulas without a result are read here of an .xlsx; of an .xls and an .ods nobody reads them.
"""

from __future__ import annotations

import datetime
import json
import posixpath
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from io import BytesIO
from typing import Any
from xml.etree.ElementTree import Element, XMLPullParser

MOST_MEMORY, MOST_S = 512 << 20, 10
"""Bytes and seconds of a processor that the process may take."""
MOST_UNPACKED, MOST_TAGS = 128 << 20, 4_000_000
_FORMATTED = "delete the empty rows and columns around the table, which have formats, and save it again"
MOST_CELLS, MOST_SIGNS = 1 << 20, 64 << 20
OLE = b"\xd0\xcf\x11\xe0"
"""How files of old Excel begin, and boards of Altium."""
_FURTHEST = 1 << 14
"""So many columns has a sheet of Excel."""


@dataclass(slots=True)
class Formats:
    """What a sheet of an .xlsx says beside values, by row and column from 1; `texts` are those calamine lacks."""

    struck: set[tuple[int, int]] = field(default_factory=set)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Sheet:
    """A sheet that is visible or not: its rows with a value, each as its number and the cells of all columns with one.

    `hidden_columns` and `formulas` (without a result) are named as Excel names them. Without `has_formats` nobody knows
    which rows are struck, or hidden.
    """

    title: str
    is_hidden: bool
    has_formats: bool
    rows: list[tuple[int, list[str]]]
    struck_rows: list[int]
    hidden_rows: list[int]
    hidden_columns: list[str]
    formulas: list[str]


def sheets_of(raw: bytes) -> list[Sheet]:
    """Return the sheets of a spreadsheet; raises ValueError, or whatever calamine and zipfile do."""
    from python_calamine import CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

    if "EncryptedPackage".encode("utf-16-le") in raw:  # an .xlsx within an OLE file
        raise ValueError("a password protects it")
    formats = {} if raw.startswith(OLE) else _formats(raw)
    book = CalamineWorkbook.from_filelike(BytesIO(raw))
    sheets, cells, signs = list[Sheet](), 0, 0
    for at, metadata in enumerate(book.sheets_metadata):
        if metadata.typ != SheetTypeEnum.WorkSheet:
            continue
        known, values = formats.get(at, Formats()), book.get_sheet_by_index(at)
        texts = dict(known.texts)
        first = values.start[1] + 1 if values.start else 1
        for row, found in enumerate(values.iter_rows() if values.start else (), 1):
            for column, value in enumerate(found, first):
                if value != "" and (text := _shown(value)):
                    texts[row, column] = text
                    cells, signs = cells + 1, signs + len(text)
                    if cells > MOST_CELLS or signs > MOST_SIGNS:
                        raise ValueError(f"it has more than {MOST_CELLS:,} cells, or {MOST_SIGNS:,} signs in them")
        rows: dict[int, dict[int, str]] = {}
        for (row, column), text in sorted(texts.items()):
            rows.setdefault(row, {})[column] = text
        columns = sorted({column for _, column in texts})
        if len(rows) * len(columns) > 4 * MOST_CELLS:
            raise ValueError(f"its table has {len(rows):,} rows and {len(columns):,} columns")
        sheets.append(
            Sheet(
                title=metadata.name,
                is_hidden=metadata.visible != SheetVisibleEnum.Visible,
                has_formats=at in formats,
                rows=[(row, [found.get(column, "") for column in columns]) for row, found in rows.items()],
                struck_rows=sorted({row for row, _ in known.struck & texts.keys()}),
                hidden_rows=sorted(known.hidden_rows & rows.keys()),
                hidden_columns=[
                    _letters(one) for one in sorted(known.hidden_columns) if one <= max(columns, default=0)
                ],
                formulas=[f"{_letters(at[1])}{at[0]}" for at, text in known.texts.items() if text.startswith("=")],
            )
        )
    return sheets


def _shown(value: object) -> str:
    """Return a value as Excel shows it: a number with 15 digits at most, a day with its time, a text in one line."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e16 else f"{value:.15g}"
    if type(value) is datetime.date:
        return f"{value} 00:00:00"
    return " ".join(str(value).split())


def _letters(column: int) -> str:
    """Return the name of a column, as AA for 27."""
    return (_letters((column - 1) // 26) if column > 26 else "") + chr(65 + (column - 1) % 26)


def _formats(raw: bytes) -> dict[int, Formats]:
    """Return the formats of the sheets of an .xlsx, by their order; none of an .ods, or an .xlsb."""
    with zipfile.ZipFile(BytesIO(raw)) as file:
        names = {part.filename: part.file_size for part in file.infolist()}
        if any(b"encryption-data" in file.read(name) for name in names if name == "META-INF/manifest.xml"):
            raise ValueError("a password protects it")
        read = re.compile(r"content\.xml|xl/w.*|xl/(?i:sharedstrings|styles)\.xml")
        if sum(size for name, size in names.items() if read.fullmatch(name)) > MOST_UNPACKED:
            raise ValueError(f"it unpacks to more than {MOST_UNPACKED >> 20} MiB; {_FORMATTED}")
        if "xl/workbook.xml" not in names:
            return {}
        struck = _struck_styles(file) if "xl/styles.xml" in names else set()
        return {at: _of_xlsx(file, name, struck) for at, name in enumerate(_parts_of_sheets(file)) if name in names}


def _elements(file: zipfile.ZipFile, name: str) -> Iterator[tuple[str, Element]]:
    """Yield the elements of a part as they end, with their names; raises ValueError for more than real ones have."""
    tags = 0
    parser: XMLPullParser[Any] = XMLPullParser()
    with file.open(name) as part:
        while piece := part.read(1 << 16):
            if (tags := tags + piece.count(b"<")) > MOST_TAGS:
                raise ValueError(f"it has more than {MOST_TAGS:,} tags; {_FORMATTED}")
            parser.feed(piece)
            for *_, element in parser.read_events():
                assert isinstance(element, Element)
                yield element.tag.rpartition("}")[2], element
    parser.close()


def _parts_of_sheets(file: zipfile.ZipFile) -> list[str]:
    """Return the part of each sheet of an .xlsx, in the order of the book."""
    targets = {
        element.get("Id"): posixpath.normpath(posixpath.join("/xl", element.get("Target", ""))).lstrip("/")
        for name, element in _elements(file, "xl/_rels/workbook.xml.rels")
        if name == "Relationship"
    }
    sheets = [element for name, element in _elements(file, "xl/workbook.xml") if name == "sheet"]
    ids = ((value for key, value in sheet.items() if key.endswith("}id")) for sheet in sheets)
    return [targets.get(next(found, ""), "") for found in ids]


def _struck_styles(file: zipfile.ZipFile) -> set[str]:
    """Return the styles of cells, as sheets name them, whose fonts are struck out."""
    lists = {name: element for name, element in _elements(file, "xl/styles.xml") if name in ("fonts", "cellXfs")}
    fonts = {
        str(at)
        for at, font in enumerate(lists.get("fonts", ()))
        for element in font
        if element.tag.endswith("}strike") and element.get("val", "1") not in ("0", "false")
    }
    return {str(at) for at, style in enumerate(lists.get("cellXfs", ())) if style.get("fontId", "0") in fonts}


def _of_xlsx(file: zipfile.ZipFile, part: str, struck: set[str]) -> Formats:
    formats, row = Formats(), 0
    for name, element in _elements(file, part):
        if name == "row":
            row = int(element.get("r", row + 1))
            if element.get("hidden") in ("1", "true"):
                formats.hidden_rows.add(row)
            column = 0
            for cell in element:
                column = _column(cell.get("r", "")) or column + 1
                if text := _unread(cell):
                    formats.texts[row, column] = text
                if struck and cell.get("s") in struck and len(cell):
                    formats.struck.add((row, column))
            element.clear()
        elif name == "col" and element.get("hidden") in ("1", "true"):
            first, last = int(element.get("min", 1)), int(element.get("max", 0))
            formats.hidden_columns |= {*range(first, min(last, _FURTHEST) + 1)}
    return formats


def _column(place: str) -> int:
    """Return the column of a place such as AB12, from 1; 0 for none."""
    column = 0
    for letter in place.rstrip("0123456789"):
        column = 26 * column + ord(letter) - 64
    return column


def _unread(cell: Element) -> str:
    """Return what calamine does not tell of a cell: an error, or a formula that no program has computed yet."""
    if cell.get("t") == "str" or not len(cell):
        return ""
    texts = {child.tag.rpartition("}")[2]: child.text or "" for child in cell}
    if "f" in texts and not texts.get("v"):
        return f"={texts['f']}"
    return texts.get("v", "") if cell.get("t") == "e" else ""


def main() -> None:
    """Read a spreadsheet from standard input; write a list of its sheets, or the sentence why not, as JSON."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        said: object = [asdict(sheet) for sheet in sheets_of(sys.stdin.buffer.read())]
    except Exception as error:  # of libraries that read a foreign file
        said = " ".join(str(error).split()) or type(error).__name__
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
