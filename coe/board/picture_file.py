"""A picture in a file, read once for each expert. Law: all experts see the same bytes, or the image is an error.

Pictures are read again rather than kept, because they are large; meanwhile a camera or a person may put another
picture, a folder or a pipe in the place of one. Reading never waits: what is not a file is refused once it is open, so
that nothing can be put in its place between the look and the reading.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import xxhash

from coe import system
from coe.errors import ImageError


class PictureFile:
    """An encoded picture at a path; `read` from many threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: bytes | None = None

    def read(self, limit_bytes: int) -> bytes:
        """Return the file's bytes; raises ImageError, without its name, where it cannot be read or has changed."""
        with self.opened() as (file, stated_bytes):
            # A file that grows all the while has an end here.
            data = file.read(limit_bytes + 1) if stated_bytes <= limit_bytes else b""
        size = max(stated_bytes, len(data))
        if size > limit_bytes:
            raise ImageError(f"has {size / 2**20:.0f} MiB, more than a picture within the limit can have")
        digest = xxhash.xxh3_128_digest(data)
        if self._seen is None:
            self._seen = digest
        if digest != self._seen:
            raise ImageError("was changed while it was inspected; leave a picture as it is until its result is there")
        return data

    @contextmanager
    def opened(self) -> Iterator[tuple[BinaryIO, int]]:
        """Give the open file and its size in bytes; raises ImageError, without its name, for what cannot be read."""
        try:
            number = os.open(self.path, os.O_RDONLY | system.AT_ONCE)
            try:
                found = os.fstat(number)
                if not stat.S_ISREG(found.st_mode):
                    raise ImageError("is not a file")
                with open(number, "rb", closefd=False) as file:
                    yield file, found.st_size
            finally:
                os.close(number)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # a NUL in the name
            raise ImageError(f"cannot be read: {error}") from error
