"""The bounds of a process beside the line: a trial, or a command of the page /teach, never takes the machine."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bytes of memory and the seconds that a process may take, with all that it has started."""

    most_bytes: int
    most_s: float
    _began_s: float = field(default_factory=time.monotonic)

    def broken_by(self, pid: int) -> str:
        """Return why a process must be ended; empty if it need not, or has ended."""
        if time.monotonic() - self._began_s > self.most_s:
            return f"it took more than {self.most_s / 3600:g} h; see `limits.child_hours`"
        held = 0
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with suppress(psutil.Error):
                    held += one.memory_info().rss
        if held > self.most_bytes:
            return f"it took more than {self.most_bytes / 2**30:.3g} GiB of memory; see `limits.child_memory`"
        return ""
