"""Reading files that come from outside: regular files only, so that no pipe or device makes a reader wait."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coe.errors import readable
from coe.helpers import system

SORTS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_CHUNK = 1 << 22


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Give a descriptor to read a file; raises OSError, also if the path leads to anything but a regular file.

    The descriptor stays with its file even if another file takes the path. Links are followed.
    """
    number = os.open(path, os.O_RDONLY | system.OPEN_FLAGS)
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"it is {SORTS.get(stat.S_IFMT(mode), 'something')}, not a file", str(path))
        yield number
    finally:
        os.close(number)


def read(path: Path, most: int) -> bytes:
    """Return the bytes of a file; raises OSError, also if there are more than `most`."""
    with opened(path) as number:
        parts: list[bytes] = []
        while sum(map(len, parts)) <= most:
            if not (part := os.read(number, min(_CHUNK, most + 1))):
                return b"".join(parts)
            parts.append(part)
    raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; raises ConfigError if it cannot be read."""
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_into(number: int, into: memoryview, at: int) -> int:
    """Fill a buffer from an open file, from its byte `at` on; return the number of bytes read, 0 at the file's end.

    Raises OSError. The call moves the position of the descriptor, so a descriptor belongs to one thread.
    """
    os.lseek(number, at, os.SEEK_SET)
    with io.FileIO(number, closefd=False) as file:
        return file.readinto(into) or 0


def read_at(number: int, size: int, at: int) -> bytes:
    """Return `size` bytes of an open file from its byte `at` on, or fewer at the end of the file; raises OSError."""
    os.lseek(number, at, os.SEEK_SET)
    return os.read(number, size)


def chunks(number: int) -> Iterator[bytes]:
    """Yield the rest of an open file, from its present position on, in pieces; raises OSError."""
    while part := os.read(number, _CHUNK):
        yield part


def names(folder: Path) -> list[str]:
    """Return the names in a folder without hidden names; none if there is no such folder. Raises OSError."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def may_exist(path: Path) -> bool:
    """Return whether something lies at a path. True too if the system does not tell: reading will then report why."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
