"""Archives and XML that come from outside, bounded: .tgz, .tar and .zip are never unpacked to the disk.

XML has no document types that define something, which can grow without bounds.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import xml.etree.ElementTree as xml
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BytesIO
from pathlib import Path

from coe.bring.parts.text_table import MAX_BYTES
from coe.errors import ConfigError, first_line
from coe.helpers.visible import visible

_GZIP, _TAR = b"\x1f\x8b", b"ustar"
MOST = 1 << 29
"""Bytes that no real archive unpacks to."""
_MOST_TAGS = 4_000_000
"""More tags than 64 MB of a CAD program hold; their elements take some 400 MB."""


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
        raise ConfigError(f"{path}: a document type has no place in {noun}; export it again")
    if raw.count(b"<") > _MOST_TAGS:
        raise ConfigError(f"{path}: it has more than {_MOST_TAGS:,} tags; export {noun} with less in it")
    try:
        for _, element in xml.iterparse(BytesIO(raw)):
            yield element
    except (xml.ParseError, ValueError, LookupError) as error:
        raise ConfigError(f"{path}: is not XML that can be read ({error}); export it again") from None
