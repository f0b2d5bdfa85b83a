"""`python -m coe.serve.teach.teach_work FOLDER NAME`: runs the commands of a step of a draft, one after another.

The gate starts it, and it ends when its standard input ends, because then the gate is gone. `work.json` says how far
it is, `work.log` what the commands say. It gives way to the line, which inspects meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from coe.cli.start import Exit
from coe.errors import ConfigError
from coe.helpers.files import write_atomically
from coe.helpers.strict_model import StrictModel, of_json
from coe.serve.teach.teach_draft import BoardDraft

WORK, LOG = "work.json", "work.log"
RESTARTED, STOPPED = -1, -2  # how work ended that a restart of the service, or a person, ended
_LOG_BYTES = 6000
_NICE = 10
LOOK_S = 1.0  # how often it is looked what a command takes


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


class Work(StrictModel):
    """Commands that are run, which of them is running, and how it ended. `then` is the step whose page shows it."""

    what: str
    then: str
    commands: tuple[tuple[str, ...], ...]
    at: int = 0
    state: Literal["running", "done", "failed"] = "running"
    exit: int = 0

    @property
    def doing(self) -> str:
        """The command that is running, as its name."""
        words = self.commands[min(self.at, len(self.commands) - 1)]
        return words[0].rpartition(".")[2].replace("_", " ") if words[0].startswith("coe.") else " ".join(words[:2])


@dataclass(eq=False)
class Works:
    """The commands that run for drafts now, by the folder of the draft."""

    running: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))  # while an uploaded table is read
    bounds: Callable[[], Bounds] = lambda: Bounds(2**40, math.inf)  # those of commands that begin now
    _changing: dict[Path, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, draft: BoardDraft, what: str, then: str, commands: Sequence[Sequence[str]]) -> None:
        """Run commands in the folder of drafts; raises ConfigError if others run for this draft already."""
        with self._lock:
            self.expect_idle(draft)
            if (before := self.running.pop(draft.folder, None)) is not None:
                _end(before)
            work = Work(what=what, then=then, commands=tuple(tuple(words) for words in commands))
            write_atomically(draft.folder / WORK, [work.model_dump_json()])
            (draft.folder / LOG).write_bytes(b"")
            command = [sys.executable, "-m", "coe.serve.teach.teach_work", str(draft.root), draft.name]
            bounds = self.bounds()
            command += [str(bounds.most_bytes), str(bounds.most_s)]
            self.running[draft.folder] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=draft.root, start_new_session=True
            )

    def changing(self, draft: BoardDraft) -> threading.Lock:
        """Return what is held while the files of a draft are changed: two people may sit before one board."""
        with self._lock:
            return self._changing.setdefault(draft.folder, threading.Lock())

    def expect_idle(self, draft: BoardDraft) -> None:
        """Raise ConfigError while commands run for a draft."""
        if self.is_running(draft):
            raise ConfigError("commands run for this board now; wait until they have ended, or stop them")

    def is_running(self, draft: BoardDraft) -> bool:
        """Tell whether commands run for a draft."""
        running = self.running.get(draft.folder)
        return running is not None and running.poll() is None

    def of(self, draft: BoardDraft) -> Work | None:
        """Return what runs for a draft, or ran last; work that a restart of the service ended has failed."""
        path = draft.folder / WORK
        if not path.is_file():
            return None
        running = self.is_running(draft)
        work = of_json(json.loads(path.read_bytes()), Work)
        if running:
            return work.model_copy(update={"state": "running"})
        return work if work.state != "running" else work.model_copy(update={"state": "failed", "exit": RESTARTED})

    def stop(self, draft: BoardDraft) -> None:
        """End the commands of a draft."""
        with self._lock:
            if (running := self.running.pop(draft.folder, None)) is not None:
                _end(running)
                if (work := self.of(draft)) is not None and work.exit == RESTARTED:
                    _tell(draft.folder / WORK, work, exit=STOPPED)

    def close(self) -> None:
        """End all commands."""
        with self._lock:
            for running in self.running.values():
                _end(running)
            self.running.clear()


def _end(running: subprocess.Popen[bytes]) -> None:
    if running.poll() is None and hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    if running.stdin is not None:
        with suppress(OSError):
            running.stdin.close()
    running.wait()


def log_of(draft: BoardDraft) -> str:
    """Return the end of what the commands of a draft said."""
    path = draft.folder / LOG
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read().decode("utf-8", "replace")


def run(draft: BoardDraft, bounds: Bounds) -> None:
    """Run the commands of `work.json`, until one fails. One that found something wrong in pictures did not fail."""
    path = draft.folder / WORK
    work = of_json(json.loads(path.read_bytes()), Work)
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    with (draft.folder / LOG).open("ab", buffering=0) as log:
        for number, words in enumerate(work.commands):
            write_atomically(path, [work.model_copy(update={"at": number}).model_dump_json()])
            command = command_of(words)
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=draft.root, env=environment
            ) as running:
                _children.append(running)
                why = ""
                while running.poll() is None and not why:
                    why = bounds.broken_by(running.pid)
                    with suppress(subprocess.TimeoutExpired):
                        running.wait(LOOK_S)
                if why:
                    _kill(running)
                    log.write(f"{why}\n".encode())
            status = running.returncode
            if status not in (Exit.OK, Exit.NOT_GOOD):
                _tell(path, work, at=number, state="failed", exit=status)
                return
    _tell(path, work, at=len(work.commands), state="done")


def _kill(command: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.Error):
        for one in psutil.Process(command.pid).children(recursive=True):
            with suppress(psutil.Error):
                one.kill()
    command.kill()
    command.wait()


_children: list[subprocess.Popen[bytes]] = []


def command_of(words: Sequence[str]) -> list[str]:
    """Return a command of CoE as this Python runs it; one that begins with `coe.` is a module."""
    if words[0].startswith("coe."):
        return [sys.executable, "-m", *words]
    return [str(Path(sys.executable).with_name(words[0])), *words[1:]]


def _tell(path: Path, work: Work, **changes: Any) -> None:
    write_atomically(path, [work.model_copy(update=changes).model_dump_json()])


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    if hasattr(os, "killpg"):  # the commands, and what they have started
        os.killpg(0, signal.SIGKILL)
    for child in _children:
        with suppress(OSError):
            child.kill()
    os._exit(1)


def main() -> None:
    """Run what the arguments name."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(OSError, AttributeError):  # Windows has no such thing
        os.nice(_NICE)
    run(BoardDraft(Path(sys.argv[1]), sys.argv[2]), Bounds(int(sys.argv[3]), float(sys.argv[4])))


if __name__ == "__main__":
    main()
