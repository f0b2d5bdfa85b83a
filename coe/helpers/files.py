"""Writing and locking files. A kill or a full disk never leaves half a file in the place of a whole file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import lock_descriptor

from coe.errors import CoeError
from coe.helpers import system

TEMPORARY = ".tmp"
"""The ending of the name of a file that is being written; the name begins with a dot."""
LOCK = ".lock"
"""The file in a folder whose lock stands for the whole folder."""


class NotWritten(CoeError):
    """A file cannot be written; everything written before is safe."""


class DiskFull(NotWritten):
    """There is no room for a file; everything written before is safe."""


def write_atomically(path: Path, parts: Iterable[str], *, mode: int = 0o666) -> None:
    """Write a text file as a whole or not at all. It is on the disk before it gets its name.

    `mode` is who may read and write it from the first byte on, less the umask. Raises DiskFull, or NotWritten for
    another reason.
    """
    with writing(path), replacing(path, mode=mode) as file:
        file.writelines(part.encode("utf-8", "backslashreplace") for part in parts)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Give a temporary file to write, with this mode less the umask. It replaces `path` once it is whole on the disk.

    Raises OSError as the operating system does. After any error the temporary file is gone and `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    # A killed writer may have left a file here; a pipe would make us wait, and a link would lead to another file.
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
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
    """Turn an OSError while `path` is written into DiskFull or NotWritten."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(
                f"{path}: no space left ({error.strerror}); free some and start again (a run: with --resume); what "
                "was written is safe"
            ) from error
        raise NotWritten(f"{path} cannot be written: {error.strerror}; give another place (a run: --out)") from error


class Writes:
    """Files that are written one after another; one that cannot be written costs none of the others.

    `expect_place` raises NotWritten if nothing may be written any more.
    """

    def __init__(self, expect_place: Callable[[], None] = lambda: None) -> None:
        self._expect_place = expect_place
        self.written: list[Path] = []
        self._failed: list[NotWritten] = []

    def attempt(self, path: Path, write: Callable[[], object]) -> None:
        """Write a file, or note why it cannot be written."""
        try:
            self._expect_place()
            write()
        except NotWritten as error:
            self._failed.append(error)
        else:
            self.written.append(path)

    def check(self) -> None:
        """Raise NotWritten, or DiskFull, which names all files that were not written."""
        if self._failed:
            is_full = all(isinstance(error, DiskFull) for error in self._failed)
            raise (DiskFull if is_full else NotWritten)("; ".join(dict.fromkeys(map(str, self._failed))))


def save_tree(folder: Path) -> None:
    """Write the files in a folder, and in its folders, to the disk, before it gets its name; raises OSError."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            system.save_names(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())


def is_other(path: Path, begins: bytes) -> bool:
    """Tell whether a file is there that does not begin as the file which would replace it; False for an empty one.

    One that cannot be read is another.
    """
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(begins)) not in (begins, b"")
    except OSError:
        return True


def append(number: int, data: bytes) -> None:
    """Append to an open file, all of `data` or nothing: half a line would damage the file. Raises OSError."""
    sound, rest = os.fstat(number).st_size, memoryview(data)
    try:
        while rest:
            rest = rest[os.write(number, rest) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(number, sound)
        raise


def is_full(error: OSError) -> bool:
    """Return whether the disk, the quota or the largest allowed file size is exhausted."""
    return error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class NoLocks(OSError):
    """The file system has no locks."""


class FolderLock:
    """The lock of a folder, or of one file: no other process or thread holds it at the same time.

    The lock ends with the process that holds it, whatever ends that process. `release` also removes the lock file. A
    process that is killed leaves the file behind, and the file alone locks nothing.
    """

    def __init__(self, path: Path, number: int) -> None:
        self._path, self._number = path, number

    @classmethod
    def take(cls, folder: Path, *, wait: bool) -> FolderLock | None:
        """Lock a folder. If another process or thread holds the lock, wait for it, or return None without `wait`.

        If the folder is replaced during the call, the lock is on the new folder. Raises OSError, and NoLocks if the
        file system has no locks.
        """
        return cls.take_file(folder / LOCK, wait=wait)

    @classmethod
    def take_file(cls, path: Path, *, wait: bool) -> FolderLock | None:
        """Do what `take` does, with the path of the lock file itself."""
        while True:
            number = os.open(path, os.O_RDWR | os.O_CREAT | system.OPEN_FLAGS, 0o644)
            try:
                if not _locked(number, wait=wait):
                    os.close(number)
                    return None
                # The previous holder may have removed the file that we opened.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(number), path.stat()):
                        return cls(path, number)
            except BaseException:
                os.close(number)
                raise
            os.close(number)

    def holds(self) -> bool:
        """Return whether the folder at this path has this lock: it may be another folder now; raises OSError."""
        try:
            return os.path.samestat(os.fstat(self._number), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others lock the folder; calling it again does nothing."""
        number, self._number = self._number, -1
        if number >= 0:
            # Remove the name first: the next process then makes a new file. Windows does not remove an open file.
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
    """Hold the lock of a folder, after waiting for it if need be; raises OSError."""
    lock = FolderLock.take(folder, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
