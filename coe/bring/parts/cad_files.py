"""What converters share: a part as the file of a CAD program has it, the table of such parts, and files in bounds.

Archives (.tgz, .tar, .zip) are never unpacked to the disk. XML has no document types that define something, which can
grow without bounds.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import xml.etree.ElementTree as xml
import zipfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import NamedTuple

from coe.bring.parts.text_table import MAX_BYTES, Table, TextLine
from coe.bring.parts.vocabulary import FITTED, HOW, LEFT_OUT, Units, plain
from coe.errors import ConfigError, first_line, list_few
from coe.helpers.visible import visible

_GZIP, _TAR = b"\x1f\x8b", b"ustar"
MOST = 1 << 29
"""Bytes that no real archive unpacks to."""
_MOST_TAGS = 4_000_000
"""More tags than 64 MB of a CAD program hold; their elements take some 400 MB."""
_FITTED = tuple(name for name in FITTED if name not in HOW)
"""The fields that say whether a part is there; one such as Mount may say how it is mounted."""


class CadPart(NamedTuple):
    """A part of a board: where it lies, counterclockwise in degrees, and on which side ("top", "bottom").

    `said` are further fields by name: one such as DNP or Populate says whether the part is fitted. `is_out`: the
    program leaves it out. `line` is its line in the file, for messages; 0: messages give its place among the parts.
    """

    refdes: str
    value: str
    package: str
    at: complex
    turn_deg: float
    side: str
    said: Iterable[tuple[str, str]] = ()
    is_out: bool = False
    line: int = 0


def table_of(parts: Sequence[CadPart], notes: Iterable[str] = (), unit: Units = Units.MM) -> Table:
    """Return the table of parts whose places are in `unit`, with notes for the person who confirms it."""
    names = ("Designator", "Value", "Footprint", f"X ({unit})", f"Y ({unit})", "Rotation", "Side", "DNP", "Fitted")
    lines = [TextLine.of_cells(0, names)]
    for number, part in enumerate(parts, 1):
        said = {plain(name): text for name, text in part.said if text}
        out, fitted = (next((said[name] for name in names if name in said), "") for names in (LEFT_OUT, _FITTED))
        numbers = (f"{part.at.real:.6f}", f"{part.at.imag:.6f}", f"{part.turn_deg:g}")
        cells = (*part[:3], *numbers, part.side, "DNP" if part.is_out else out, fitted)
        lines.append(TextLine.of_cells(part.line or number, cells))
    return Table(lines, tuple(notes))


@contextmanager
def numbers_in(path: Path, what: str) -> Iterator[None]:
    """Raise ConfigError, which calls it `what`, for numbers that are missing in a file, or are none."""
    try:
        yield
    except (ValueError, TypeError, IndexError, OverflowError):
        raise ConfigError(f"{path}: {what} lacks a number; save or export the board again") from None


def left_unread(names: Iterable[str], why: str) -> tuple[str, ...]:
    """Return a note on the parts of a board that no placement file of its program would have; none without a name."""
    few = list_few(map(visible, filter(None, dict.fromkeys(names))))
    return (f"not read, {why}: {few}",) if few else ()


def only_board(
    path: Path, noun: str, with_parts: Iterable[str], panels: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    """Return the name of the one board of a file that has components and is no panel, and notes; raises ConfigError."""
    boards = [name for name in with_parts if name not in panels]
    if len(boards) != 1:
        what = f"several boards ({list_few(map(visible, boards))})" if boards else "no components"
        raise ConfigError(f"{path}: this {noun} has {what}; export it for the assembly of one board")
    few = list_few(map(visible, sorted(panels)))
    return boards[0], (f"the places are those of one board, repeated by the panel {few}",) if few else ()


# Archives and XML, within bounds


def files(path: Path, raw: bytes, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the files of an archive whose names, in lower case and with /, are `wanted`; raises ConfigError."""
    found: dict[str, bytes] = {}
    is_tar = raw.startswith(_GZIP) or raw[257:262] == _TAR
    try:
        for name, content in (_in_tar if is_tar else _in_zip)(path, raw, wanted):
            found[name] = content
            if len(content) > MAX_BYTES:
                raise ConfigError(f"{path}: {visible(name)} in it is larger than {MAX_BYTES:,} bytes")
            if sum(map(len, found.values())) > MOST:
                raise _too_large(path)
    except ConfigError:
        raise
    except Exception as error:  # of a library that reads a foreign file
        why = f"this archive cannot be read ({first_line(error):.200})"
        raise ConfigError(f"{path}: {why}; unpack it, or pack it again") from None
    return found


class _Bounded(BufferedIOBase):
    """Reads what an archive unpacks to, up to `MOST` bytes: whoever packs zeros fills no memory with them."""

    def __init__(self, path: Path, file: BufferedIOBase) -> None:
        self._path, self._file, self._left = path, file, MOST

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; raises ConfigError if they are too many."""
        self._left -= len(part := self._file.read(-1 if size is None else size))
        if self._left < 0:
            raise _too_large(self._path)
        return part


def _too_large(path: Path) -> ConfigError:
    return ConfigError(f"{path}: the archive unpacks to more than {MOST:,} bytes; pack less into it")


def _in_tar(path: Path, raw: bytes, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    packed, is_gzip = BytesIO(raw), raw.startswith(_GZIP)
    if not is_gzip and any(raw[-tarfile.BLOCKSIZE :]):  # tarfile takes any end, also that of a copy that was cut off
        raise EOFError("its end is missing")
    bounded = _Bounded(path, gzip.GzipFile(fileobj=packed) if is_gzip else packed)
    with tarfile.open(fileobj=bounded, mode="r|") as members:
        for member in members:
            name = member.name.replace("\\", "/").lower()
            if member.isfile() and wanted(name) and (file := members.extractfile(member)):  # a link leads nowhere
                yield name, file.read(MAX_BYTES + 1)


def _in_zip(_: Path, raw: bytes, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(BytesIO(raw)) as members:
        for member in members.infolist():
            if wanted(name := member.filename.replace("\\", "/").lower()):
                with members.open(member) as file:
                    yield name, file.read(MAX_BYTES + 1)


def xml_of(path: Path, raw: bytes, noun: str) -> xml.Element:
    """Return the root of a file's bytes; raises ConfigError, which calls it `noun`, if it cannot be read."""
    return deque(elements(path, raw, noun), 1).pop()


def elements(path: Path, raw: bytes, noun: str) -> Iterator[xml.Element]:
    """Yield the elements of a file's bytes as they end, so that who has read one may clear it; the root is the last.

    Raises ConfigError, which calls the file `noun`, if it cannot be read.
    """
    if b"<!ENTITY" in raw or re.search(rb"<!DOCTYPE[^>]*\[", raw):
        raise ConfigError(f"{path}: {noun} must not have a document type (DOCTYPE); export it again")
    if raw.count(b"<") > _MOST_TAGS:
        raise ConfigError(f"{path}: it has more than {_MOST_TAGS:,} tags; export {noun} with less content")
    try:
        for _, element in xml.iterparse(BytesIO(raw)):
            yield element
    except (xml.ParseError, ValueError, LookupError) as error:
        raise ConfigError(f"{path}: not readable as XML ({error}); export it again") from None
