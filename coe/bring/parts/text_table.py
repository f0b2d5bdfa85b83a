"""Tables in text files as CAD programs and placement machines write them: numbered lines, and the cells of a line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coe.errors import ConfigError, list_few, readable
from coe.helpers import regular
from coe.helpers.spelling import composed

MAX_BYTES = 64 << 20
_LONGEST_LINE = 1 << 16
_SIGNS = 64
_MOST_ZEROS = 0.05
"""Some programs leave zeros in a line that is shorter in another language; in no text they are more."""
_LOST = re.compile(r"\0{64}|\0\s*$")
"""What stands in the place of text that was not written to the disk."""
_SHEET = re.compile(r"(?P<file>.+\.(?:xlsx|xlsm|xls|ods))#(?P<sheet>.+)", re.IGNORECASE | re.DOTALL)
_CONTROLS = re.compile("[\0-\x08\x0e-\x19\x1c-\x1f]")
"""What stands in no text, but for a few: these make up an eighth of what is packed or encrypted."""
_DECLARED = re.compile(r"(?<=<\?xml )([^>]*)encoding=\S+?(?=[\s?])")
_NO_WIDTH = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_MARKS = (
    *((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
"""The marks at the beginning of a file: that of UTF-32 begins as that of UTF-16 does."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a file, without its end, and its number from 1; of a spreadsheet, whether cells are struck out."""

    number: int
    text: str
    is_struck: bool = False

    @classmethod
    def of_cells(cls, number: int, cells: Iterable[str], *, is_struck: bool = False) -> TextLine:
        """Return a row of these cells, each in quotes, with tabs between them."""
        quoted = ('"' + " ".join(cell.split()).replace('"', '""') + '"' for cell in cells)
        return cls(number, "\t".join(quoted), is_struck)

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


def _unmarked(raw: bytes) -> list[str]:
    """Return UTF-16 in a byte order if the first signs of a file without a mark are western ones written so."""
    first, second = raw[:_SIGNS:2], raw[1:_SIGNS:2]
    if any(first) == any(second):
        return []
    return ["utf-16-be"] if any(second) else ["utf-16-le"]


def in_utf8(raw: bytes) -> bytes:
    """Return UTF-16 and UTF-32 as UTF-8, also XML that declares them; other bytes as they are."""
    for encoding in _marked(raw):
        with suppress(UnicodeDecodeError):
            return undeclared(raw.decode(encoding)).encode()
    return raw


def undeclared(text: str) -> str:
    """Return XML without the encoding that it declares: it has been decoded."""
    return _DECLARED.sub(r"\1", text, count=1)


def _marked(raw: bytes) -> list[str]:
    return [encoding for mark, encoding in _MARKS if raw.startswith(mark)][:1] or _unmarked(raw)


def parse(path: Path, raw: bytes, noun: str, fallback: str | None = None) -> list[TextLine]:
    """Return the lines, of a file's bytes, that are not empty; raises ConfigError, which calls the file `noun`.

    A file that begins with a byte order mark is in UTF-8, -16 or -32, as the mark says, or without one in UTF-16 as its
    zeros say; other files are in UTF-8, or in the encoding `fallback` if one is given.
    """
    for encoding in _marked(raw) or ["utf-8", fallback or "utf-8"]:
        try:
            text = raw.decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    else:
        raise ConfigError(f"{noun} {path} is not a text in UTF-8; save it as one")
    text = without_hidden(composed(text))  # names meet, however their accented letters are written
    if text.count("\0") <= _MOST_ZEROS * len(text) and not _LOST.search(text):
        text = text.replace("\0", " ")
    if "\0" in text or len(_CONTROLS.findall(text)) > _MOST_ZEROS * len(text):
        raise ConfigError(f"{noun} {path} is not a text; export it again as text or CSV")
    lines = [TextLine(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for line in lines:
        if len(line.text) > _LONGEST_LINE:
            what = noun.removeprefix("the ")
            raise ConfigError(f"{path}:{line.number}: a line of {len(line.text):,} characters; this is no {what}")
    return lines


def without_hidden(text: str) -> str:
    """Return a text without signs of no width, as what is copied from web pages has."""
    return _NO_WIDTH.sub("", text)


def further_lines(lines: Sequence[int]) -> str:
    """Return which lines but the first have the same fault, behind its sentence."""
    return f" (also line {list_few(map(str, lines[1:]))})" if lines[1:] else ""
