"""A picture in a file, read once for each expert: all experts see the same bytes, or the image gets an error.

Pictures are large, so they are read again rather than kept. Between two readings a camera or a person may put another
picture, a folder or a pipe in the same place. Anything but a file is refused after it is opened, so that nothing can
take its place between the check and the reading. `timely` gives up a read that does not come back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from coe.errors import DamagedImage, ImageError
from coe.helpers import regular
from coe.helpers.timely import answered
from coe.pictures.formats import pixels_in

PIECE_BYTES = 1 << 20
"""A disk or share that does not give so much within `config.read_timeout_s()` does not answer."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """By what a file is known to be unchanged: its size in bytes, and when it was last written, in ns."""

    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """Return the stamp of a file by what the system says of it."""
        return cls(status.st_size, status.st_mtime_ns)


class PictureFile:
    """An encoded picture at a path; many threads may call `read`.

    With a SHA-256 (hexadecimal) it is read only if its bytes have it.
    """

    def __init__(self, path: Path, sha256: str = "") -> None:
        self.path, self._sha256 = path, sha256
        self._seen: bytes | None = None

    @property
    def is_stated(self) -> bool:
        """Whether a SHA-256 is given, so that what `read` returns is the whole file."""
        return bool(self._sha256)

    def read(self, limit_bytes: int) -> bytes:
        """Return the file's bytes; raises ImageError, without its name, if it cannot be read or has changed."""
        with self.opened() as (file, stated_bytes):
            # Python reserves memory for all that it is to read. The limit ends the reading of a file that grows all the
            # time, and may be a gigabyte; so it is asked for only where there is more than the file said.
            data = _read(file, stated_bytes + 1) if stated_bytes <= limit_bytes else b""
            if len(data) > stated_bytes:
                data += _read(file, limit_bytes + 1 - len(data))
        size = max(stated_bytes, len(data))
        if size > limit_bytes:
            raise ImageError(f"has {size / 2**20:.0f} MiB, more than any picture within the limit")
        digest = xxhash.xxh3_128_digest(data)
        if self._seen is None:
            if self._sha256 and hashlib.sha256(data).hexdigest() != self._sha256:
                raise DamagedImage(
                    "has another SHA-256 than was stated, because its file was changed or damaged; copy it again, and "
                    "submit it again"
                )
            self._seen = digest
        if digest != self._seen:
            raise ImageError("was changed while it was inspected; do not change a picture before its result")
        return data

    def header(self) -> tuple[int, int | None]:
        """Return the file's size in bytes, and its pixels by its header; raises ImageError if it cannot be read."""
        with self.opened() as (file, stated_bytes):
            return stated_bytes, pixels_in(file)

    @contextmanager
    def opened(self) -> Iterator[tuple[BinaryIO, int]]:
        """Give the open file and its size in bytes; raises ImageError, without its name, if it cannot be read."""
        try:
            with regular.opened(self.path) as number, open(number, "rb", closefd=False) as file:
                yield file, os.fstat(number).st_size
        except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
            raise ImageError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _read(file: BinaryIO, most: int) -> bytes:
    """Return at most so many bytes of a file; `timely` hears of each piece."""
    pieces: list[bytes] = []
    while most > 0 and (piece := file.read(min(most, PIECE_BYTES))):
        answered()
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)
