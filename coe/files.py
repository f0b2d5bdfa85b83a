"""Writing files so that a kill or a full disk never leaves half of one in the place of a whole one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coe.errors import CoeError, ConfigError


class DiskFull(CoeError):
    """There is no room for more results; what was written is safe."""


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Write a text file as a whole or not at all, and onto the disk before it takes its name. Raises DiskFull."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a file that cannot be written into DiskFull or ConfigError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise DiskFull(
                f"{path}: there is no room ({error.strerror}); what was written is safe, so make room and --resume"
            ) from error
        raise ConfigError(f"{path} cannot be written: {error.strerror}; give another folder with --out") from error
