"""Opening files that others may have put there: regular files only, so that no pipe or device makes a reader wait."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coe import system

_SORTS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_CHUNK = 1 << 22


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Give the descriptor of a file to read; raises OSError, also for what is no regular file.

    It stays the same file, whatever takes its place meanwhile. Links are followed: what they lead to must be regular.
    """
    number = os.open(path, os.O_RDONLY | system.AT_ONCE)
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"it is {_SORTS.get(stat.S_IFMT(mode), 'something')}, not a file", str(path))
        yield number
    finally:
        os.close(number)


def read(path: Path, most: int) -> bytes:
    """Return what a file holds; raises OSError, also for more than `most` bytes."""
    with opened(path) as number:
        parts: list[bytes] = []
        while sum(map(len, parts)) <= most:
            if not (part := os.read(number, min(_CHUNK, most + 1))):
                return b"".join(parts)
            parts.append(part)
    raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))


def read_into(number: int, into: memoryview, at: int) -> int:
    """Read from an open file, from its byte `at` on, what fits; return how many bytes came, 0 at its end.

    Raises OSError. The next plain read goes on from there: a descriptor belongs to one thread.
    """
    os.lseek(number, at, os.SEEK_SET)
    with io.FileIO(number, closefd=False) as file:
        return file.readinto(into) or 0


def read_at(number: int, size: int, at: int) -> bytes:
    """Return `size` bytes of an open file from its byte `at` on, fewer at its end; raises OSError."""
    os.lseek(number, at, os.SEEK_SET)
    return os.read(number, size)


def chunks(number: int) -> Iterator[bytes]:
    """Yield what an open file holds from where it stands, in pieces; raises OSError."""
    while part := os.read(number, _CHUNK):
        yield part


def names(folder: Path) -> list[str]:
    """Return what lies in a folder and is not hidden, nothing of what is no folder; raises OSError."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def may_exist(path: Path) -> bool:
    """Tell whether something lies at a path, or whether that cannot be seen, which reading it will report."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
