"""Lines that are open when the interpreter exits. Law: the exit waits for running batches, but not for ever."""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Protocol

_LONGEST_S = 10.0
"""How long the exit of the interpreter waits for all lines together; a user's kind may never return."""


class OpenLine(Protocol):
    """What the exit needs of a line."""

    def abandon(self) -> None:
        """Tell all threads to end; waits for nothing."""

    def join(self, until_s: float) -> None:
        """Wait for the threads, at most until the time `until_s` on the monotonic clock."""


_OPEN: weakref.WeakSet[OpenLine] = weakref.WeakSet()


def end_at_exit(line: OpenLine) -> None:
    """End a line when the interpreter exits, if it still exists: a thread killed in a batch may abort the process."""
    _OPEN.add(line)


@atexit.register
def _end_all() -> None:
    lines, until_s = list(_OPEN), time.monotonic() + _LONGEST_S
    for line in lines:
        line.abandon()
    for line in lines:
        line.join(until_s)
