"""Reads a spreadsheet (.xlsx, .xls, .ods) in a process of its own, which may take so much memory and time and no more.

`text_table.py` runs this file as a program: the spreadsheet is its input, its output JSON, as `main` says. A file of
some kB may unpack to GB, and `python-calamine` makes a table of all cells up to the farthest: whatever a file is made
for, only this process ends.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import zipfile
from dataclasses import asdict, dataclass
from io import BytesIO

MOST_MEMORY, MOST_S = 512 << 20, 10
"""Bytes and seconds of a processor that the process may take."""
MOST_UNPACKED = 128 << 20
MOST_CELLS, MOST_SIGNS = 1 << 20, 64 << 20
OLE = b"\xd0\xcf\x11\xe0"
"""How files of old Excel begin, and boards of Altium."""
_PARTS = re.compile(r"content\.xml|xl/w.*|xl/(?i:sharedstrings|styles)\.xml|META-INF/manifest\.xml")
_DESIGNATOR = re.compile(r"[A-Za-z]{1,3}\d{1,4}\s*($|[,;])")
_FORMATS = {
    "cells are struck out": rb'<(?:\w+:)?strike\s*(?:/|val="(?:1|true)")|text-line-through-style="solid"',
    "rows or columns are hidden": rb'<(?:\w+:)?(?:row|col)\b[^>]*\shidden="[1t]|visibility="(?:collapse|filter)"',
    "formulas have no result": rb"<f[ >][^<]*</f>(?:<v\s*/>|<v></v>)?</c>",
    "cells hold errors": rb'<(?:\w+:)?c\b[^>]*\st="e"',
}
"""What calamine does not tell of an .xlsx or .ods, and what says so in its XML."""


@dataclass(slots=True)
class Sheet:
    """A sheet that is visible or not: its rows with a value, each as its number and the cells of all columns with one.

    `unseen` is what may be of its cells that values do not tell, such as that some are struck out.
    """

    title: str
    is_hidden: bool
    rows: list[tuple[int, list[str]]]
    unseen: list[str]


def sheets_of(raw: bytes) -> list[Sheet]:
    """Return the sheets of a spreadsheet; raises ValueError, or whatever calamine and zipfile do."""
    from python_calamine import CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

    if "EncryptedPackage".encode("utf-16-le") in raw:  # an .xlsx within an OLE file
        raise ValueError("a password protects it")
    unseen = ["cells may be struck out or hidden"] if raw.startswith(OLE) else _unseen(raw)
    book = CalamineWorkbook.from_filelike(BytesIO(raw))
    sheets, count, signs = list[Sheet](), 0, 0
    for metadata in book.sheets_metadata:
        if metadata.typ != SheetTypeEnum.WorkSheet:
            continue
        values = book.get_sheet_by_name(metadata.name)
        rows: dict[int, dict[int, str]] = {}
        for row, found in enumerate(values.iter_rows() if values.start else (), 1):
            if texts := {at: text for at, value in enumerate(found) if value != "" and (text := _shown(value))}:
                rows[row] = texts
                count, signs = count + len(texts), signs + sum(map(len, texts.values()))
                if count > MOST_CELLS or signs > MOST_SIGNS:
                    raise ValueError(f"it has more than {MOST_CELLS:,} cells, or {MOST_SIGNS:,} characters in them")
        for (top, left), (bottom, _) in values.merged_cell_ranges or ():
            # A cell that is merged over several rows says the same of each that names parts of its own.
            if said := rows.get(top + 1, {}).get(left):
                for row in filter(rows.__contains__, range(top + 2, bottom + 2)):
                    if any(map(_DESIGNATOR.match, rows[row].values())):
                        rows[row].setdefault(left, said)
        columns = sorted({at for texts in rows.values() for at in texts})
        if len(rows) * len(columns) > 4 * MOST_CELLS:
            raise ValueError(f"its table has {len(rows):,} rows and {len(columns):,} columns")
        table = [(row, [texts.get(at, "") for at in columns]) for row, texts in rows.items()]
        sheets.append(Sheet(metadata.name, metadata.visible != SheetVisibleEnum.Visible, table, unseen))
    return sheets


def _shown(value: object) -> str:
    """Return a value as Excel shows it: a number with 15 digits at most, a day with its time, a text in one line."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e16 else f"{value:.15g}"
    if type(value) is datetime.date:
        return f"{value} 00:00:00"
    return " ".join(str(value).split())


def _unseen(raw: bytes) -> list[str]:
    """Return what the XML of an .xlsx or .ods says of cells beside their values; raises ValueError for too much."""
    with zipfile.ZipFile(BytesIO(raw)) as file:
        parts = [part for part in file.infolist() if _PARTS.fullmatch(part.filename)]
        if sum(part.file_size for part in parts) > MOST_UNPACKED:
            what = "delete the empty rows and columns around the table, which have formats, and save it again"
            raise ValueError(f"it unpacks to more than {MOST_UNPACKED >> 20} MiB; {what}")
        found: dict[str, None] = {}
        for part in parts:
            xml = file.read(part)
            if b"encryption-data" in xml and part.filename.startswith("META-INF"):
                raise ValueError("a password protects it")
            found |= {what: None for what, mark in _FORMATS.items() if re.search(mark, xml)}
        return [*found]


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
