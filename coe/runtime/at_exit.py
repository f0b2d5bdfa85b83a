"""Lines that are open when the interpreter ends. Law: the end waits for the batches that run, and not for ever."""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Protocol

_LONGEST_S = 10.0
"""How long the end of the interpreter waits for all lines together; a user's kind may never return."""


class Line(Protocol):
    """What can be ended."""

    def abandon(self) -> None:
        """Stop, and end all threads; waits for nothing."""

    def join(self, until_s: float) -> None:
        """Wait for the threads, until that time on the monotonic clock at most."""


_OPEN: weakref.WeakSet[Line] = weakref.WeakSet()


def end_at_exit(line: Line) -> None:
    """Have a line ended at the end of the interpreter, if it is there: a thread that dies in a batch may abort."""
    _OPEN.add(line)


@atexit.register
def _end_all() -> None:
    lines, until_s = list(_OPEN), time.monotonic() + _LONGEST_S
    for line in lines:
        line.abandon()
    for line in lines:
        line.join(until_s)
