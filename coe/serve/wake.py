"""A bell between processes: the gate rings, and the line looks into the database. Law: it carries no data.

The database is the truth; a ring that is lost costs at most the time until the line looks again by itself. The bell is
a named pipe, which needs no socket and has no length limit for its path.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

_INSIDE, _OUTSIDE = b"i", b"o"


class Bell:
    """The end of a bell that waits; one process at a time."""

    def __init__(self, path: Path) -> None:
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Open for writing too: without a writer the pipe would count as ended, and waiting would not wait.
        self._number = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        """Ring from any thread of this process."""
        with suppress(BlockingIOError):  # it is full of rings already
            os.write(self._number, _INSIDE)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring, at most for a time; return whether another process rang."""
        readable, _, _ = select.select([self._number], [], [], max(0.0, timeout_s))
        with suppress(BlockingIOError):
            return bool(readable) and _OUTSIDE in os.read(self._number, 1 << 16)
        return False

    def close(self) -> None:
        """Close it."""
        os.close(self._number)


def ring(path: Path) -> bool:
    """Ring the bell at a path; False if nobody waits there."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(number, _OUTSIDE)
    except OSError:
        return False
    finally:
        os.close(number)
    return True
