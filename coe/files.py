"""Writing files so that a kill or a full disk never leaves half of one in the place of a whole one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import lock_descriptor

from coe import system
from coe.errors import CoeError

TEMPORARY = ".tmp"
"""How the names of files end that are being written; they begin with a dot."""
LOCK = ".lock"
"""The file that is locked for the folder that it lies in."""


class NotWritten(CoeError):
    """A file cannot be written; what was written before is safe."""


class DiskFull(NotWritten):
    """There is no room for more results; what was written is safe."""


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Write a text file as a whole or not at all, and onto the disk before it takes its name.

    Raises DiskFull, or NotWritten for another reason.
    """
    with writing(path), replacing(path) as file:
        file.writelines(part.encode("utf-8", "backslashreplace") for part in parts)


def why_not(path: Path) -> str | None:
    """Say why no file can be written at a path, as what follows its name in a sentence; None if nothing is known of."""
    if os.path.isdir(path):
        return "is a folder"
    if not os.path.isdir(path.parent):
        return f"cannot be written: there is no folder {path.parent}"
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # too long a name, or a NUL in it
        return f"cannot be written: {getattr(error, 'strerror', None) or error}"
    return None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write that takes the place of `path` once it is whole and on the disk.

    Raises OSError as the operating system does. Whatever goes wrong, nothing is left and `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    # Something may lie there: what a killed writer left, or a pipe, which would wait, or a link to another file.
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        system.replace(temporary, path)
        system.save_names(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a file that cannot be written into DiskFull or NotWritten."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(
                f"{path}: there is no room ({error.strerror}); what was written is safe, so make room and --resume"
            ) from error
        raise NotWritten(f"{path} cannot be written: {error.strerror}; give another place with --out") from error


def is_full(error: OSError) -> bool:
    """Tell whether there is no room for a file, or no more of it is allowed."""
    return error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class NoLocks(OSError):
    """The file system knows no locks."""


class FolderLock:
    """A folder that no other process or thread has locked.

    The lock ends with the process that holds it, however that ends. Its file goes when the lock does; a process that is
    killed leaves the file, which then locks nothing.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._path, self._number = folder / LOCK, number

    @classmethod
    def take(cls, folder: Path, *, wait: bool) -> FolderLock | None:
        """Lock a folder; None if that would mean to wait and `wait` is not set.

        If a folder was replaced by another meanwhile, the lock is on the new one. Raises OSError, and NoLocks where
        the file system has none.
        """
        path = folder / LOCK
        while True:
            number = os.open(path, os.O_RDWR | os.O_CREAT | system.AT_ONCE, 0o644)
            try:
                if not _locked(number, wait=wait):
                    os.close(number)
                    return None
                # Whoever had the lock before has taken its file away.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(number), path.stat()):
                        return cls(folder, number)
            except BaseException:
                os.close(number)
                raise
            os.close(number)

    def release(self) -> None:
        """Let others lock the folder; calling it again does nothing."""
        number, self._number = self._number, -1
        if number >= 0:
            # First the name: whoever opens the file after this makes a new one. Windows keeps a file that is open.
            with suppress(OSError):
                if os.path.samestat(os.fstat(number), self._path.stat()):
                    self._path.unlink()
            os.close(number)


def _locked(number: int, *, wait: bool) -> bool:
    try:
        return lock_descriptor(number, blocking=wait)
    except OSError as error:
        raise NoLocks(error.errno, error.strerror) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is `alone` with a folder, and keep them waiting; raises OSError."""
    lock = FolderLock.take(folder, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
