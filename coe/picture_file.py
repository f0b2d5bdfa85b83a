"""A picture in a file, read once for each expert. Law: all experts see the same bytes, or the image is an error.

Pictures are read again rather than kept, because they are large; meanwhile a camera or a person may put another
picture, a folder or a pipe in the place of one. Reading never waits: what is not a file is refused once it is open, so
that nothing can be put in its place between the look and the reading.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import xxhash

from coe.errors import ImageError


class PictureFile:
    """An encoded picture at a path; `read` from many threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None

    def read(self, limit_bytes: int) -> bytes:
        """Return the file's bytes; raises ImageError, without its name, where it cannot be read or has changed."""
        data = _read(self._path, limit_bytes)
        digest = xxhash.xxh3_128_digest(data)
        if self._seen is None:
            self._seen = digest
        if digest != self._seen:
            raise ImageError("was changed while it was inspected; leave a picture as it is until its result is there")
        return data


def _read(path: Path, limit_bytes: int) -> bytes:
    try:
        # Without O_NONBLOCK, opening a pipe would wait until somebody writes into it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return _whole(number, limit_bytes)
        finally:
            os.close(number)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise ImageError(f"cannot be read: {error}") from error


def _whole(number: int, limit_bytes: int) -> bytes:
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        raise ImageError("is not a file")
    size = found.st_size
    if size <= limit_bytes:
        with open(number, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)  # a file that grows all the while has an end here
        if len(data) <= limit_bytes:
            return data
        size = len(data)
    raise ImageError(f"has {size / 2**20:.0f} MiB, more than a picture within the limit can have")
