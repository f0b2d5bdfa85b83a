"""Tables as CAD programs and placement machines write them: numbered lines of a text, or rows of a spreadsheet.

A row of a spreadsheet is a line with tabs between quoted cells.
"""

from __future__ import annotations

import codecs
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from coe.bring.parts import sheet_reader
from coe.bring.parts.sheet_reader import OLE, Sheet
from coe.errors import ConfigError, list_few, readable
from coe.helpers import regular
from coe.helpers.spelling import composed
from coe.helpers.visible import visible

MAX_BYTES = 64 << 20
Node: TypeAlias = "list[Node | str]"
Numbered: TypeAlias = "tuple[int, Node]"
"""A list in brackets of a board of KiCad, and the number of its line."""
_LONGEST_LINE = 1 << 16
_MOST_ZEROS = 0.05  # Some programs leave zeros in a line that is shorter in another language; in no text they are more
_LOST = re.compile(r"\0{64}|\0\s*$")  # What stands in the place of text that was not written to the disk
_SHEET = re.compile(r"(?P<file>.+\.(?:xlsx|xlsm|xls|ods))#(?P<sheet>.+)", re.IGNORECASE | re.DOTALL)
_CONTROLS = re.compile("[\0-\x08\x0e-\x19\x1c-\x1f]")
"""What stands in no text, but for a few: these make up an eighth of what is packed or encrypted."""
_DECLARED = re.compile(r"(?<=<\?xml )([^>]*)encoding=\S+?(?=[\s?])")
_NO_WIDTH = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # signs that what is copied from web pages has
_MARKS = (
    *((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
"""The marks at the beginning of a file: that of UTF-32 begins as that of UTF-16 does."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a file, without its end, and its number from 1."""

    number: int
    text: str

    @classmethod
    def of_cells(cls, number: int, cells: Iterable[str]) -> TextLine:
        """Return a row of these cells, each in quotes, with tabs between them."""
        bare = (" ".join(_NO_WIDTH.sub("", cell).split()).replace('"', '""') for cell in cells)
        return cls(number, "\t".join(f'"{cell}"' for cell in bare))

    @property
    def is_remark(self) -> bool:
        """Whether the line begins with '#'."""
        return self.text.lstrip().startswith("#")


def content(path: Path, noun: str) -> bytes:
    """Return the bytes of a file, or of that of a sheet; raises ConfigError, which calls the file `noun`."""
    with readable(f"{noun} {path}"):
        return regular.read(of_sheet(path)[0], MAX_BYTES)


def of_sheet(path: Path) -> tuple[Path, str]:
    """Return the file and the sheet of a path as bom.xlsx#Parts; the path itself and "" if it names no sheet."""
    found = _SHEET.fullmatch(str(path))
    return (Path(found["file"]), found["sheet"]) if found and not path.exists() else (path, "")


def in_utf8(raw: bytes) -> bytes:
    """Return UTF-16 and UTF-32 as UTF-8, also XML that declares them; other bytes as they are.

    A byte-order mark names them, or in a text of western signs the zeros of UTF-16.
    """
    marked = [encoding for mark, encoding in _MARKS if raw.startswith(mark)][:1]
    first, second = any(raw[:64:2]), any(raw[1:64:2])
    for encoding in marked or ([] if first == second else ["utf-16-be" if second else "utf-16-le"]):
        with suppress(UnicodeDecodeError):
            return _DECLARED.sub(r"\1", raw.decode(encoding), count=1).encode()
    return raw


def parse(path: Path, raw: bytes, noun: str, fallback: str) -> list[TextLine]:
    """Return the lines, of a file's bytes in UTF-8 or `fallback`, that are not empty; raises ConfigError."""
    for encoding in ("utf-8", fallback):
        with suppress(UnicodeDecodeError):
            text = _DECLARED.sub(r"\1", raw.decode(encoding), count=1)
            break
    else:
        raise ConfigError(f"{noun} {path} is not UTF-8 text; save it as UTF-8")
    text = _NO_WIDTH.sub("", composed(text))  # names meet, however their accented letters are written
    if text.count("\0") <= _MOST_ZEROS * len(text) and not _LOST.search(text):
        text = text.replace("\0", " ")
    if "\0" in text or len(_CONTROLS.findall(text)) > _MOST_ZEROS * len(text):
        raise ConfigError(f"{noun} {path} is not text; export it again as text or CSV")
    lines = [TextLine(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if long := [line for line in lines if len(line.text) > _LONGEST_LINE]:
        what = f"a line of {len(long[0].text):,} characters; this is not a {noun.removeprefix('the ')}"
        raise fault(path, [long[0].number], what)
    return lines


def fault(path: Path, lines: Sequence[int], what: str) -> ConfigError:
    """Return the error for what is wrong in lines of a file."""
    also = f" (also line {list_few(map(str, lines[1:]))})" if lines[1:] else ""
    return ConfigError(f"{path}:{lines[0]}: {what}{also}")


# Spreadsheets, and whatever a table lies in


_XLSX, _ODS = b"[Content_Types].xml", b"opendocument.spreadsheet"
"""What spreadsheets have in their list of files, and in their first file, which is not packed."""
_IN_OLE = ("Workbook", "Book", "EncryptedPackage")
_TOO_MUCH = (
    f"it is damaged, or takes more than {sheet_reader.MOST_MEMORY >> 20} MiB of memory or {sheet_reader.MOST_S} s; "
    "delete cells far from the table"
)
_LONGEST_S = 120  # The process that reads a file takes less, unless others keep the processors busy


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a file, notes on how they were read for a person, and the lists of a board of KiCad."""

    lines: list[TextLine]
    notes: tuple[str, ...] = field(default=())
    drawn: Sequence[Numbered] = field(default=(), repr=False)


def read_sheet(path: Path, raw: bytes, is_table: Callable[[Sequence[TextLine]], bool]) -> Table:
    """Return the sheet that `path` names, or the one that has rows, or of several that which `is_table` knows.

    Of these it is one that is not hidden. Notes tell the other sheets, and what is hidden. Raises ConfigError.
    """
    sheets = _sheets(path, raw)
    lines = {sheet.title: [TextLine.of_cells(number, cells) for number, cells in sheet.rows] for sheet in sheets}
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
    others = ", ".join(f"'{visible(sheet.title)}'" for sheet in filled if sheet is not chosen)
    title = f"the sheet '{visible(chosen.title)}'"
    notes = {
        f"{title} was read; not read: {others}": others,
        f"{title} is hidden, and was read": chosen.is_hidden,
        f"in this spreadsheet {' and '.join(chosen.unseen)}, which CoE cannot see; remove what is not "
        "meant": chosen.unseen,
    }
    return Table(lines[chosen.title], tuple(note for note, is_so in notes.items() if is_so))


def _sheets(path: Path, raw: bytes) -> list[Sheet]:
    """Return the sheets of a file; raises ConfigError."""
    if raw.startswith(OLE) and not any(name.encode("utf-16-le") in raw for name in _IN_OLE):
        raise ConfigError(f"{path}: an Altium board or a document, which is not supported; export a table as CSV")
    if not (raw.startswith(OLE) or _ODS in raw[:256] or _XLSX in raw):
        raise ConfigError(
            f"{path}: an archive, e.g. of Gerber files or Numbers, which is not supported; save the table as CSV"
        )
    # -P: the folder of the program is none of those that its modules may come from.
    program = [sys.executable, "-P", sheet_reader.__file__]
    try:
        done = subprocess.run(program, input=raw, capture_output=True, timeout=_LONGEST_S, check=False)
        said = json.loads(done.stdout) if done.returncode == 0 else _TOO_MUCH
    except subprocess.TimeoutExpired:
        said = _TOO_MUCH
    if isinstance(said, str):
        raise ConfigError(f"{path}: the spreadsheet cannot be read ({visible(said[:300])}); save the table as CSV")
    return [Sheet(**sheet) for sheet in said]


_ENCODINGS = ("cp1252", "gb18030", "cp1250", "cp1251", "cp932", "cp949", "big5", "euc_jp", "koi8_r", "cp866")
"""What programs write if they write no UTF-8, western first, as a value with a micro sign."""
_CHINESE = re.compile(rb"[\xa1-\xf7][\xa1-\xfe]")
"""A sign of GB2312; of the usual words, the first byte is no higher than 0xD7."""
_AS_TEXT = re.compile(r'(?<![^,;\t])(?:="([^",;\t]*)"|"=""([^"]*)""")(?=[,;\t]|$)')
"""="R1", with or without quotes around it, which keeps a spreadsheet from making a number or a date of it."""
_WRAPPED = re.compile(r'"((?:[^",;\t]|"")*+[,;\t](?:[^"]|"")*+)"[,;\t]*')
"""A row that has become one cell, as in a spreadsheet program that expects another separator."""
SPREADSHEETS = (b"PK\x03\x04", OLE)
"""How the files of spreadsheet programs begin."""


def lines_of(path: Path, raw: bytes, noun: str, is_table: Callable[[Sequence[TextLine]], bool]) -> Table:
    """Return the lines of a text, or the rows of a spreadsheet as lines; raises ConfigError, which calls it `noun`.

    What is no UTF-8 is read in the first encoding in which `is_table` knows its columns.
    """
    if raw.startswith(SPREADSHEETS):
        return read_sheet(path, raw, is_table)
    raw, readings = in_utf8(raw), list[list[TextLine]]()
    # Where all that is not ASCII comes in such pairs, columns that are named in English tell nothing of the words.
    is_chinese = re.search(rb"[\xb0-\xd7][\xa1-\xfe]", raw) and _CHINESE.sub(b"", raw).isascii()
    for encoding in ("gb18030", *_ENCODINGS) if is_chinese else _ENCODINGS:
        try:
            lines = parse(path, raw, noun, encoding)
        except ConfigError:
            if encoding == _ENCODINGS[-1] and not readings:
                raise
            continue
        rows = [_WRAPPED.fullmatch(line.text) for line in lines]
        if 2 * sum(map(bool, rows)) > len(lines):
            texts = (row[1].replace('""', '"') if row else line.text for line, row in zip(lines, rows, strict=True))
            lines = [replace(line, text=text) for line, text in zip(lines, texts, strict=True)]
        lines = [
            replace(line, text=_AS_TEXT.sub(r'"\1\2"', line.text)) if '="' in line.text else line for line in lines
        ]
        if lines not in readings:
            if is_table(lines):
                return Table(lines)
            readings.append(lines)
    return Table(readings[0])
