"""The processes of a service: the supervisor starts them, hands on their logs, and learns why they ended."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coe.serve.enums import Process
from coe.serve.service_config import ServeConfig

LEAST_PAUSE_S, MOST_PAUSE_S = 0.5, 60.0
"""A process that dies is started again after a pause that doubles with each death, within these bounds."""
HEALTHY_S = 60.0
"""A process that has lived for this time begins again with the least pause."""
_LAST_LINE_S = 1.0
"""How long the end of a log is waited for: another process, which the one that ended has started, may hold it open."""
_KILLED_S = 1.0
_LONGEST_LINE = 1000

Command = Callable[[Process, Path], Sequence[str]]
"""Returns the words of the command that runs a process of the service with a config file."""


def command_of(process: Process, config: Path) -> Sequence[str]:
    """Return the command of a process."""
    return [sys.executable, "-m", "coe.serve.child", process, str(config), "-"]


class LogRelay(threading.Thread):
    """Hands the log of a process on to ours; `last_line` is the last one with words in it."""

    def __init__(self, log: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._log, self.last_line = log, ""
        try:
            self.start()
        except RuntimeError:
            log.close()
            raise

    def run(self) -> None:
        """Hand on until the log ends."""
        with self._log as lines:
            while line := lines.readline(_LONGEST_LINE):
                with suppress(OSError):  # nobody reads ours
                    os.write(2, line)
                if re.search(rb"\w", line):
                    self.last_line = line.decode(errors="replace").strip()


@dataclass(slots=True, eq=False)
class Child:
    """A process of the service; `running` is None while it waits to be started again."""

    process: Process
    running: subprocess.Popen[bytes] | None = None
    log: LogRelay | None = None
    started_s: float = 0.0
    pause_s: float = LEAST_PAUSE_S
    starts_s: float = 0.0
    killed_why: str = ""
    """Why the supervisor killed it; empty if it did not."""

    def care(self, command: Sequence[str], config: ServeConfig, now_s: float) -> str:
        """Start a process whose time has come; return why one does not run if it has died, or could not be started."""
        why = ""
        if self.running is None and now_s >= self.starts_s:
            why = self._start(command, config, now_s)
        elif self.running is not None and (status := self.running.poll()) is not None:
            if now_s - self.started_s >= HEALTHY_S:
                self.pause_s = LEAST_PAUSE_S
            why, self.killed_why = self.killed_why or f"the {self.process} {self._end(status)}", ""
            self.forget()
        if not why:
            return ""
        why = f"{why}; it starts again in {self.pause_s:g} s"
        self.starts_s = now_s + self.pause_s
        self.pause_s = min(2 * self.pause_s, MOST_PAUSE_S)
        return why

    def forget(self) -> None:
        """Forget a process; one that has not ended is killed."""
        assert self.running is not None
        assert self.running.stdin is not None
        self.running.kill()
        with suppress(subprocess.TimeoutExpired):  # one that waits for a disk ends when that answers
            self.running.wait(_KILLED_S)
        self.running.stdin.close()
        self.running = None

    def _start(self, command: Sequence[str], config: ServeConfig, now_s: float) -> str:
        """Start the process; return why it could not be."""
        self.started_s = now_s
        try:
            self.running = subprocess.Popen(
                command,
                # Its end tells the process that the supervisor is gone.
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C is for the supervisor, which ends its processes in order.
                process_group=0,
            )
            assert self.running.stdin is not None
            assert self.running.stderr is not None
            self.log = LogRelay(self.running.stderr)
            with suppress(BrokenPipeError):  # it has ended already
                os.write(self.running.stdin.fileno(), pickle.dumps(config))
        except (OSError, RuntimeError) as error:  # no memory, process or thread is left for now: the others go on
            if self.running is not None:
                self.forget()
            return f"the {self.process} could not be started: {error}"
        return ""

    def _end(self, status: int) -> str:
        """Return how the process ended, and what it said last if it had the time to say why."""
        if status == -signal.SIGKILL:
            return "was ended by signal 9 (Killed), as where memory is short"
        how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
        assert self.log is not None
        self.log.join(_LAST_LINE_S)
        last = self.log.last_line.removeprefix(f"{self.process}: ").rstrip(".")
        return f"{how}: {last}" if last else how
