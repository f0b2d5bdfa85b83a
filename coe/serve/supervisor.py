"""`coe-serve run`: the processes of a service. One that dies is started again, and the others go on.

The supervisor holds nothing: it starts processes, writes down what became of them, and tells systemd that the service
is alive. What waits for the disk of the service, or for its database, does so on a thread of its own, because neither
need answer. A process whose supervisor is gone ends by itself (`coe.serve.child`).
"""

from __future__ import annotations

import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeVar

from coe.errors import ConfigError
from coe.helpers.files import FolderLock
from coe.helpers.timely import Helper
from coe.serve.bridge.sink_settings import expect_packages
from coe.serve.clock import now_us
from coe.serve.database import fault_log, outbox, states
from coe.serve.database.connecting import Claim, Database, open_database
from coe.serve.database.database_errors import DatabaseError
from coe.serve.database.migration import expect_newest
from coe.serve.database.states import SILENT_S
from coe.serve.database.tables import NewFault
from coe.serve.enums import FaultKind, Intake, Process, Subject
from coe.serve.exposure import expect_keys, expect_place
from coe.serve.secret_file import make_all
from coe.serve.service_config import ServeConfig, load
from coe.serve.silent_worker import SilentWorker

# The processes of a service: the supervisor starts them, hands on their logs, and learns why they ended


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


PROCESSES = (Process.GATE, Process.WORKER)
"""The processes in the order in which they start; the bridge comes after them if there is anybody to be told."""
LOOK_S = 0.1
NOTIFY_S = 1.0
CLAIM_S = 30.0
"""How long another service may seem to hold the database until this service ends: the server may take so long to notice
that the session of a claim is gone, as of this one after the network was cut."""
QUIET_S = 30.0
"""After so long without a refusal by the database, the next one is said again."""
CLAIM_AT_START_S = 3.0
"""A service that ended a moment ago may hold it still."""
GRACE_S = 10.0
"""How long a process that was told to end may take beyond the time for begun boards, until it is killed."""

_CLAIMED = "database: another service works with it; end that service, or give each service a database of its own"
_T = TypeVar("_T")


class Supervisor:
    """Runs the processes of a service until SIGTERM or SIGINT."""

    def __init__(self, path: Path, *, command: Command = command_of) -> None:
        self._path, self._command = path.absolute(), command
        self.config: ServeConfig = load(path)
        bridge = (Process.BRIDGE,) if self.config.sinks.names else ()
        self.children: Mapping[Process, Child] = {process: Child(process) for process in (*PROCESSES, *bridge)}
        self._is_ending = False
        self._faults: list[NewFault] = []
        self._refused_s = math.inf
        self._was_ready = False
        self._storage = Helper("records")
        """The thread that waits for the disk and the database."""
        self._answered_s = 0.0
        self._silent_since_s: float | None = None
        self._last_refusal_s = -math.inf

    def end(self) -> None:
        """End the service in order; may be called by a signal handler."""
        self._is_ending = True

    def run(self) -> None:
        """Run until `end`. Raises ConfigError, before any process is started, for a service that cannot run."""
        held = ExitStack()
        try:
            opened = self._ask(partial(self._open, held))
            while not self._answers(opened):
                wait({opened}, LOOK_S)
            database, claim = opened.result()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.end())
            try:
                self._supervise(database, claim)
            finally:
                notify(SystemdNotice.STOPPING)
                self._end_with(partial(self._drain, database))
                is_silent = self._silent_since_s is not None  # then no board can be finished
                _end([self.children[Process.WORKER]], GRACE_S + (0.0 if is_silent else self.config.drain_s))
                _end([*self.children.values()], GRACE_S)
        finally:
            self._end_with(held.close)
            self._storage.end()

    def _open(self, held: ExitStack) -> tuple[Database, Claim]:
        try:
            self.config.data.mkdir(parents=True, exist_ok=True)
            lock = FolderLock.take(self.config.data, wait=False)
        except OSError as error:
            raise ConfigError(
                f"the service cannot write into its folder {self.config.data}: {error.strerror or error}; give it the "
                "right to, or another `data`"
            ) from None
        if lock is None:
            raise ConfigError(f"{self.config.data}: another service is running here; end it first")
        held.callback(lock.release)
        database = open_database(self.config.database_url)
        held.callback(database.close)
        claim = Claim(database)
        held.callback(claim.release)
        expect_newest(database)
        _expect_claim(claim)
        expect_keys(self.config, database)
        expect_place(self.config.listen)
        expect_packages(self.config.sinks)
        _expect_libraries()
        _register_sinks(self.config, database)
        _reopen(database)
        with suppress(OSError):  # of a service that an older version made; without room, whoever needs one says so
            make_all(self.config.data)
        return database, claim

    def _ask(self, work: Callable[[], _T]) -> Future[_T]:
        """Let the other thread do what waits for the disk or the database."""
        self._answered_s = time.monotonic()
        return self._storage.ask(work)

    def _answers(self, asked: Future[_T]) -> bool:
        """Return whether there is an answer; say so if there has been none for long, and if there is one again."""
        now_s, what = time.monotonic(), f"the disk of {self.config.data}, or the database,"
        is_done, since_s = asked.done(), self._silent_since_s
        if not is_done and since_s is None and now_s - self._answered_s > SILENT_S:
            self._silent_since_s = self._answered_s
            _log(f"{what} does not answer; see to it, and the service goes on by itself")
        elif is_done and since_s is not None:
            self._silent_since_s = None
            self._note(FaultKind.DATABASE, f"{what} did not answer for {now_s - since_s:.0f} s", "database")
        return is_done

    def _end_with(self, work: Callable[[], object]) -> None:
        """Do what belongs to the end; a disk that does not answer is not waited for."""
        asked, until_s = self._ask(work), time.monotonic() + GRACE_S
        while not self._answers(asked) and self._silent_since_s is None and time.monotonic() < until_s:
            wait({asked}, LOOK_S)
        if asked.done():
            asked.result()

    def _supervise(self, database: Database, claim: Claim) -> None:
        silent, worker = SilentWorker(self.config, database, self._refused), self.children[Process.WORKER]
        asked: Future[str] | None = None
        asked_s, pid = -math.inf, None
        while not self._is_ending:
            now_s = time.monotonic()
            for child in self.children.values():
                if why := child.care(self._command(child.process, self._path), self.config, now_s):
                    self._note(FaultKind.PROCESS_DIED, why, child.process)
            if asked is not None and self._answers(asked):
                if (why := asked.result()) and worker.running is not None and worker.running.pid == pid:
                    worker.killed_why = why
                    worker.running.kill()
                asked = None
            if asked is None and now_s - asked_s >= NOTIFY_S:
                asked_s = now_s
                pid = worker.running.pid if worker.running else None
                asked = self._ask(partial(self._look, database, claim, partial(silent.look, pid, worker.started_s)))
            time.sleep(LOOK_S)

    def _look(self, database: Database, claim: Claim, look: Callable[[], str]) -> str:
        """Write what is new, keep the claim, and return why the worker must be killed, empty if it need not."""
        self._write_faults(database)
        self._answered_s = time.monotonic()
        self._keep_claim(claim)
        self._answered_s = time.monotonic()
        why = look()
        if _is_alive(database):
            notify(SystemdNotice.ALIVE if self._was_ready else SystemdNotice.READY)
            self._was_ready = True
        return why

    def _keep_claim(self, claim: Claim, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise ConfigError if another service has taken the database, as while its server was restarted."""
        try:
            is_held = claim.hold()
        except DatabaseError:  # nobody says that another has it
            is_held = True
        now_s = clock()
        self._refused_s = math.inf if is_held else min(self._refused_s, now_s)
        if now_s - self._refused_s > CLAIM_S:
            raise ConfigError(_CLAIMED)

    def _note(self, kind: FaultKind, message: str, about: str) -> None:
        """Note a fault in the log, and in the database once that takes it."""
        _log(message)
        self._faults.append(NewFault(Process.SUPERVISOR, kind, message, about))

    def _write_faults(self, database: Database) -> None:
        try:
            while self._faults:
                new = self._faults[0]
                with database.writing() as connection:
                    fault_log.note(connection, new, now_us())
                    if new.kind is FaultKind.DATABASE:  # it is over, because it can be written
                        fault_log.clear_about(connection, new.process, new.kind, about=new.about, now_us=now_us())
                del self._faults[0]
        except DatabaseError as error:
            self._refused(error)

    def _refused(self, error: DatabaseError) -> None:
        """Say once that the database does not do what it is asked: the gate, which would say so, may be what died.

        Between two refusals it may answer for `SILENT_S`, as one that cannot be written can be read.
        """
        now_s, last_s = time.monotonic(), self._last_refusal_s
        if now_s - last_s > QUIET_S:
            _log(str(error))
        self._last_refusal_s = now_s

    def _drain(self, database: Database) -> None:
        """Accept no more boards: the worker finishes those that it has begun."""
        self._write_faults(database)
        with suppress(DatabaseError), database.writing() as connection:
            if states.intake(connection) is Intake.OPEN:
                states.change(connection, Subject.INTAKE, Intake.DRAINING, by=Process.SUPERVISOR, now_us=now_us())


def _log(message: str) -> None:
    sys.stderr.write(f"supervisor: {message}\n")
    sys.stderr.flush()


def _end(children: Sequence[Child], most_s: float) -> None:
    """Tell processes to end, and kill those that take too long."""
    for child in children:
        if child.running is not None:
            child.running.terminate()
    until_s = time.monotonic() + most_s
    for child in children:
        if child.running is not None:
            with suppress(subprocess.TimeoutExpired):
                child.running.wait(max(0.0, until_s - time.monotonic()))
            child.forget()


def _expect_claim(claim: Claim) -> None:
    """Raise ConfigError if another service works with the database."""
    until_s = time.monotonic() + CLAIM_AT_START_S
    while not claim.hold():
        if time.monotonic() > until_s:
            raise ConfigError(_CLAIMED)
        time.sleep(LOOK_S)


def _expect_libraries() -> None:
    """Raise ModuleNotFoundError if a library of the gate is missing: its process would end at each start."""
    for name in ("starlette", "uvicorn", "prometheus_client"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def _register_sinks(config: ServeConfig, database: Database) -> None:
    """Make the sinks of the config those that are told of what happens from now on, before anything can happen."""
    with database.writing() as connection:
        outbox.register_sinks(connection, config.sinks.names, now_us())
        gone = {FaultKind.SINK: config.sinks.names, FaultKind.FOLDER: list(config.folders), FaultKind.CERTIFICATE: []}
        for kind, names in gone.items():
            fault_log.clear_gone(connection, kind, names, by=Process.SUPERVISOR, now_us=now_us())


def _reopen(database: Database) -> None:
    """Accept boards again after an end in order; a drain that a person asked for stays."""
    with database.writing() as connection:
        newest = states.current(connection, Subject.INTAKE)
        if newest is not None and newest.changed_by == Process.SUPERVISOR:
            states.change(connection, Subject.INTAKE, Intake.OPEN, by=Process.SUPERVISOR, now_us=now_us())


def _is_alive(database: Database) -> bool:
    """Return whether worker and database answer."""
    with suppress(DatabaseError), database.reading() as connection:
        return states.living_worker(connection, now_us()) is not None
    return False


SYSTEMD_SOCKET = "NOTIFY_SOCKET"
"""The variable with the address at which systemd listens, if it asked for it."""


class SystemdNotice(StrEnum):
    """The notices that systemd understands."""

    READY = "READY=1"
    ALIVE = "WATCHDOG=1"
    """Worker and database have answered; without it for a while systemd restarts the service."""
    STOPPING = "STOPPING=1"


def notify(notice: SystemdNotice) -> bool:
    """Tell systemd, in a datagram on this machine; False if it did not ask, or does not listen."""
    address = os.environ.get(SYSTEMD_SOCKET, "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(notice.encode(), address)
        return True
    return False
