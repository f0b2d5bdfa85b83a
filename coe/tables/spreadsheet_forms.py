"""The sheets of a spreadsheet in each of its forms: .xlsx, the .xls of old Excel, or the .ods of LibreOffice."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree

from coe.tables import safe_xml
from coe.text_table import without_hidden

if TYPE_CHECKING:
    from openpyxl.workbook import Workbook

_MOST_UNPACKED = 1 << 30
_MOST_CELLS, _TOO_MANY = 4 << 20, "it has more than four million cells"
_PROTECTED = "a password protects it"
_NEEDED = re.compile(r"(?!.*(?:worksheets/_rels|chartsheets|drawings|charts|docProps)/).*\.(?:xml|rels)")
_BOUND = re.compile(rb"<((?:\w+:)?(?:pivotCaches|definedNames))\b.*?</\1>", re.DOTALL)
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)")
"""The namespaces of a strict XLSX, of which openpyxl knows the usual ones alone."""
_STYLE = re.compile(rb'\s(?:s|style)="\d+"')
_EMPTY_CELL = re.compile(rb"<((?:\w+:)?)c\b(?=[^<>]*\sr=)[^<>]*(?:/>|(?<!/)>\s*</\1c>)")
_EMPTY_ROW = re.compile(rb"<((?:\w+:)?)row\b(?=[^<>]*\sr=)[^<>]*(?:/>|(?<!/)>\s*</\1row>)")
_PIECE = 1 << 20
_FORMULA = re.compile(
    rb"<((?:\w+:)?)c\b((?:(?!\st=\"str\")[^<>])*)>\s*<\1f\b[^<>]*(?:/>|>([^<]*)</\1f>)\s*"
    rb"(?:<\1v\s*/>|<\1v>\s*</\1v>)?\s*</\1c>"
)
"""A formula that no program has computed yet: its cell has no value, and no text that is empty."""
_ODS = cache("{{urn:oasis:names:tc:opendocument:xmlns:{}:1.0}}{}".format)


@dataclass(slots=True)
class Sheet:
    """A sheet: the texts of its cells by row and column, from 1, and which rows and columns are hidden, or struck.

    Without `has_formats` nobody knows which rows are struck.
    """

    title: str
    is_hidden: bool = False
    has_formats: bool = True
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    struck_rows: set[int] = field(default_factory=set)
    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: set[int] = field(default_factory=set)

    def put(self, row: int, column: int, value: object, *, is_struck: bool = False) -> None:
        """Note what a cell holds; a text without a sign is none."""
        if text := " ".join(without_hidden(str(value)).split()):
            self.cells[row, column] = text
            self.struck_rows |= {row} if is_struck else set()
            if len(self.cells) > _MOST_CELLS:
                raise ValueError(_TOO_MANY)


def of_xlsx(raw: bytes) -> Iterator[Sheet]:
    """Yield the sheets of an .xlsx file with the values of their cells; raises whatever openpyxl does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and the like, which nobody needs
        has_formats = True
        try:
            book = _load(raw)
        except (IndexError, TypeError):  # some programs write no styles, and name them, or others than are known
            has_formats, book = False, _load(raw, styled=False)
    for worksheet in book.worksheets:
        sheet = Sheet(worksheet.title, worksheet.sheet_state != "visible", has_formats)
        for cell in worksheet._cells.values():  # to ask a sheet for its rows would make all cells between them
            if cell.value is not None:
                sheet.put(cell.row, cell.column, cell.value, is_struck=bool(cell.font and cell.font.strike))
        sheet.hidden_rows = {row for row, format in worksheet.row_dimensions.items() if format.hidden}
        for span in worksheet.column_dimensions.values():
            if span.hidden:
                sheet.hidden_columns |= {*range(span.min or 0, (span.max or 0) + 1)}
        yield sheet


def _load(raw: bytes, *, styled: bool = True) -> Workbook:
    import openpyxl

    needed = BytesIO()
    with zipfile.ZipFile(BytesIO(raw)) as old, zipfile.ZipFile(needed, "w") as new:
        parts = [part for part in old.infolist() if _NEEDED.fullmatch(part.filename)]
        parts = [part for part in parts if styled or not part.filename.endswith("xl/styles.xml")]
        _expect_size(sum(part.file_size for part in parts))
        for part in parts:
            with old.open(part) as file:
                xml = _STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006", _filled(file))
            new.writestr(part.filename, xml if styled or b"sheetData>" not in xml else _STYLE.sub(b"", xml))
    return openpyxl.load_workbook(needed, data_only=True, keep_links=False)


def _expect_size(size: int) -> None:
    if size > _MOST_UNPACKED:
        raise ValueError("it unpacks to more than 1 GiB")


def _filled(file: IO[bytes]) -> bytes:
    """Return the XML of a sheet without empty cells, rows and what follows them; of a book, without what refers to it.

    It is read in pieces, as formats alone may fill hundreds of MB. A formula without a value is the text of its cell.
    """
    kept, rest = [], b""
    while piece := file.read(_PIECE):
        rows, end, rest = (rest + piece).rpartition(b"row>")
        rows = _FORMULA.sub(rb'<\1c\2 t="inlineStr"><\1is><\1t>=\3</\1t></\1is></\1c>', rows + end)
        kept.append(_EMPTY_ROW.sub(b"", _EMPTY_CELL.sub(b"", rows)))
    xml = b"".join([*kept, rest])
    if b"<sheets" in xml:
        return _BOUND.sub(b"", xml)
    sheet, end, _ = xml.rpartition(b"sheetData>")
    return sheet + end + xml[xml.rfind(b"</") :] if end else xml


def of_xls(raw: bytes) -> Iterator[Sheet]:
    """Yield the sheets of an .xls file; raises whatever xlrd does."""
    import xlrd

    if "EncryptedPackage".encode("utf-16-le") in raw:  # an .xlsx within
        raise ValueError(_PROTECTED)
    # Without ragged rows, one cell far away would fill all between with empty ones.
    book = xlrd.open_workbook(file_contents=raw, formatting_info=True, ragged_rows=True, logfile=StringIO())
    for worksheet in book.sheets():
        sheet = Sheet(worksheet.name, worksheet.visibility != 0)
        sheet.hidden_rows = {row + 1 for row, format in worksheet.rowinfo_map.items() if format.hidden}
        sheet.hidden_columns = {column + 1 for column, format in worksheet.colinfo_map.items() if format.hidden}
        for row in range(worksheet.nrows):
            for column, cell in enumerate(worksheet.row(row)):
                value = cell.value
                if cell.ctype == xlrd.XL_CELL_NUMBER:
                    value = f"{value:.15g}"  # as many digits as Excel shows
                elif cell.ctype == xlrd.XL_CELL_DATE:
                    value = xlrd.xldate_as_datetime(value, book.datemode)
                elif cell.ctype == xlrd.XL_CELL_BOOLEAN:
                    value = bool(value)
                elif cell.ctype == xlrd.XL_CELL_ERROR:
                    value = xlrd.error_text_from_code.get(value, "#N/A")
                font = book.font_list[book.xf_list[cell.xf_index].font_index]
                sheet.put(row + 1, column + 1, value, is_struck=bool(font.struck_out))
        yield sheet


def of_ods(path: Path, raw: bytes) -> Iterator[Sheet]:
    """Yield the sheets of an .ods file; raises ConfigError, or whatever zipfile does."""
    with zipfile.ZipFile(BytesIO(raw)) as file:
        if any(b"encryption-data" in file.read(name) for name in file.namelist() if name == "META-INF/manifest.xml"):
            raise ValueError(_PROTECTED)
        _expect_size(file.getinfo("content.xml").file_size)
        elements = safe_xml.elements(path, file.read("content.xml"), "a spreadsheet")
    styles: dict[str, ElementTree.Element] = {}

    def has(style: str, said: str, *values: str) -> bool:
        """Tell whether one of the properties of a style has one of the values."""
        return any(element.get(said) in values for element in styles.get(style, ()))

    sheet, number, column = Sheet(""), 1, 1
    for element in elements:
        if element.tag == _ODS("style", "style"):
            styles[element.get(_ODS("style", "name"), "")] = element
        elif element.tag == _ODS("table", "table-column"):
            count = int(element.get(_ODS("table", "number-columns-repeated"), 1))
            sheet.hidden_columns |= {*range(column, column + min(count, 1024))} if _is_hidden(element) else set()
            column += count
        elif element.tag == _ODS("table", "table-row"):
            rows = int(element.get(_ODS("table", "number-rows-repeated"), 1))
            at = 1
            for cell in element:
                count = int(cell.get(_ODS("table", "number-columns-repeated"), 1))
                if (text := _ods_text(cell)) and rows * count > _MOST_CELLS:
                    raise ValueError(_TOO_MANY)
                if text:
                    names = [part.get(_ODS(kind, "style-name"), "") for part in cell.iter() for kind in _STYLED]
                    struck = any(has(name, _ODS("style", "text-line-through-style"), "solid") for name in names)
                    for place in range(rows * count):
                        sheet.put(number + place // count, at + place % count, text, is_struck=struck)
                at += count
            sheet.hidden_rows |= {number} if _is_hidden(element) else set()
            number += rows
            element.clear()  # millions of cells may be empty
        elif element.tag == _ODS("table", "table"):
            sheet.title = element.get(_ODS("table", "name"), "")
            sheet.is_hidden = has(element.get(_ODS("table", "style-name"), ""), _ODS("table", "display"), "false")
            yield sheet
            sheet, number, column = Sheet(""), 1, 1


_STYLED = ("table", "text")
"""The kinds of elements of a cell that have a style."""
_BLANKS = {_ODS("text", name) for name in ("s", "tab", "line-break")}


def _is_hidden(element: ElementTree.Element) -> bool:
    return element.get(_ODS("table", "visibility"), "visible") != "visible"


def _ods_text(cell: ElementTree.Element) -> str:
    """Return what a cell holds: of a number all its digits, of a date the day, and else the text that is shown."""
    kind = cell.get(_ODS("office", "value-type"))
    value = cell.get(_ODS("office", "value" if kind == "float" else "date-value" if kind == "date" else ""))
    if value is not None:
        return value.replace("T", " ")
    shown = " ".join(map(_plain, cell.findall(_ODS("text", "p"))))
    return shown or cell.get(_ODS("table", "formula"), "").removeprefix("of:")


def _plain(element: ElementTree.Element) -> str:
    parts = [element.text or ""]
    for child in element:
        parts += [" " if child.tag in _BLANKS else _plain(child), child.tail or ""]
    return "".join(parts)
