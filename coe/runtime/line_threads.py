"""The process and the threads of a line. Law: a thread of the line never waits for the line.

Such a thread would wait for ever, because the line would wait for it. A forked child has a line's memory but none of
its threads.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection

from coe.errors import LineClosed, WouldWaitForItself


class LineThreads:
    """The process that a line was opened in, and the threads of the line."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.threads: Collection[threading.Thread] = ()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the line's process."""
        return os.getpid() != self._process

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is one of the line's."""
        return threading.current_thread() in self.threads

    def join(self, until_s: float = math.inf, *, among: Collection[threading.Thread] | None = None) -> None:
        """Wait until all threads, or those `among`, have ended, at most until `until_s` on the monotonic clock."""
        for thread in () if self.is_forked else self.threads if among is None else among:
            if thread.ident is None:  # it never started: the system was out of threads
                continue
            left_s = until_s - time.monotonic()
            thread.join(max(0.0, left_s) if math.isfinite(left_s) else None)

    def expect_process(self) -> None:
        """Raise LineClosed in a forked child."""
        if self.is_forked:
            raise LineClosed(
                f"this line runs in process {self._process} alone, and this is process {os.getpid()}, forked from it; "
                "open an Inspector of its own here, or submit there"
            )

    def expect_waitable(self, call: str) -> None:
        """Raise LineClosed in a forked child, WouldWaitForItself on a thread of the line."""
        self.expect_process()
        if self.is_own_thread:
            raise WouldWaitForItself(
                f"{call} would wait for this line on a thread of the line itself "
                f"({threading.current_thread().name}: a callback, a watcher or a kind) and never end; "
                "call it on a thread of your own"
            )
