"""`coe-serve run`: the processes of a service. One that dies is started again, and the others go on.

The supervisor holds nothing: it starts processes, writes down what became of them, and tells systemd that the service
is alive. A process whose supervisor is gone ends by itself (`coe.serve.child`).
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coe.errors import ConfigError
from coe.files import FolderLock
from coe.serve.bridge.sink_settings import expect_packages
from coe.serve.clock import now_us
from coe.serve.database import fault_log, outbox, states
from coe.serve.database.connecting import Claim, Database, open_database
from coe.serve.database.database_errors import DatabaseError
from coe.serve.database.fault_log import NewFault
from coe.serve.database.migration import expect_newest
from coe.serve.enums import FaultKind, Intake, Process, Subject
from coe.serve.exposure import expect_keys, expect_place
from coe.serve.secret_file import make_all
from coe.serve.service_config import ServeConfig, load
from coe.serve.silent_worker import SilentWorker
from coe.serve.systemd import SystemdNotice, notify

PROCESSES = (Process.GATE, Process.WORKER)
"""The processes in the order in which they start; the bridge comes after them if there is anybody to be told."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.5, 60.0
"""A process that dies is started again after a pause that doubles with each death, within these bounds."""
HEALTHY_S = 60.0
"""A process that has lived for this time begins again with the least pause."""
LOOK_S = 0.1
NOTIFY_S = 1.0
CLAIM_S = 30.0
"""How long another service may seem to hold the database until this service ends: the server may take so long to notice
that the session of a claim is gone, as of this one after the network was cut."""
CLAIM_AT_START_S = 3.0
"""A service that ended a moment ago may hold it still."""
GRACE_S = 10.0
"""How long a process that was told to end may take beyond the time for begun boards, until it is killed."""

_CLAIMED = "database: another service works with it; end that service, or give each service a database of its own"

Command = Callable[[Process, Path], Sequence[str]]
"""Returns the words of the command that runs a process of the service with a config file."""


def command_of(process: Process, config: Path) -> Sequence[str]:
    """Return the command of a process."""
    return [sys.executable, "-m", "coe.serve.child", process.word, str(config), "-"]


@dataclass(slots=True, eq=False)
class Child:
    """A process of the service; `running` is None while it waits to be started again."""

    process: Process
    running: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = LEAST_PAUSE_S
    starts_s: float = 0.0
    killed_why: str = ""
    """Why the supervisor killed it; empty if it did not."""


class Supervisor:
    """Runs the processes of a service until SIGTERM or SIGINT."""

    def __init__(self, path: Path, *, command: Command = command_of) -> None:
        self._path, self._command = path.absolute(), command
        self.config: ServeConfig = load(path)
        bridge = (Process.BRIDGE,) if self.config.sinks.names else ()
        self._children = [Child(process) for process in (*PROCESSES, *bridge)]
        self._is_ending = False
        self._faults: list[NewFault] = []
        self._notified_s = 0.0
        self._refused_s = math.inf
        self._was_ready = False
        self._has_told = False
        """Whether the processes are told to end, or were."""

    @property
    def children(self) -> Mapping[Process, Child]:
        """The processes."""
        return {child.process: child for child in self._children}

    def end(self) -> None:
        """End the service in order; may be called by a signal handler."""
        if not self._is_ending:
            self._is_ending = True
            late = threading.Timer(GRACE_S, self._end_anyway)
            late.daemon = True
            late.start()

    def _end_anyway(self) -> None:
        """End the processes if the main thread does not come to it, because its database does not answer."""
        if not self._has_told:
            _end(self._children, self.config.drain_s)
            os._exit(1)

    def run(self) -> None:
        """Run until `end`. Raises ConfigError, before any process is started, for a service that cannot run."""
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
        database = open_database(self.config.database_url)
        claim = Claim(database)
        try:
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
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.end())
            try:
                silent = SilentWorker(self.config, database)
                while not self._is_ending:
                    self._step(database, claim, silent)
                    time.sleep(LOOK_S)
            finally:
                notify(SystemdNotice.STOPPING)
                self._end_all(database)
        finally:
            claim.release()
            database.close()
            lock.release()

    def _step(self, database: Database, claim: Claim, silent: SilentWorker) -> None:
        now_s = time.monotonic()
        for child in self._children:
            self._care_for(child, now_s)
        self._write_faults(database)
        if now_s - self._notified_s >= NOTIFY_S:
            self._notified_s = now_s
            self._keep_claim(claim)
            self._watch(silent)
            if _answers(database):
                notify(SystemdNotice.ALIVE if self._was_ready else SystemdNotice.READY)
                self._was_ready = True

    def _watch(self, silent: SilentWorker) -> None:
        """Kill a worker that stands still; it is started again as one that died."""
        worker = self.children[Process.WORKER]
        pid = worker.running.pid if worker.running else None
        worker.killed_why = silent.look(pid, worker.started_s) or worker.killed_why
        if worker.running is not None and worker.killed_why:
            worker.running.kill()

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

    def _care_for(self, child: Child, now_s: float) -> None:
        """Start a process whose time has come; note one that has died."""
        if child.running is None:
            if now_s >= child.starts_s:
                self._start(child, now_s)
            return
        status = child.running.poll()
        if status is None:
            return
        if now_s - child.started_s >= HEALTHY_S:
            child.pause_s = LEAST_PAUSE_S
        _forget(child)
        why, child.killed_why = child.killed_why or f"the {child.process.word} ended with status {status}", ""
        self._start_later(child, now_s, why)

    def _start(self, child: Child, now_s: float) -> None:
        child.started_s = now_s
        try:
            child.running = subprocess.Popen(
                self._command(child.process, self._path),
                # Its end tells the process that the supervisor is gone.
                stdin=subprocess.PIPE,
                # Ctrl-C is for the supervisor, which ends its processes in order.
                process_group=0,
            )
            assert child.running.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already
                os.write(child.running.stdin.fileno(), pickle.dumps(self.config))
        except OSError as error:  # the machine has no memory or no process left for now: the others go on
            self._start_later(child, now_s, f"the {child.process.word} could not be started: {error}")

    def _start_later(self, child: Child, now_s: float, why: str) -> None:
        """Note why a process does not run, and start it after a pause."""
        message = f"{why}; it starts again in {child.pause_s:g} s"
        self._faults.append(NewFault(Process.SUPERVISOR, FaultKind.PROCESS_DIED, message, child.process))
        child.starts_s = now_s + child.pause_s
        child.pause_s = min(2 * child.pause_s, MOST_PAUSE_S)

    def _write_faults(self, database: Database) -> None:
        with suppress(DatabaseError):
            while self._faults:
                with database.writing() as connection:
                    fault_log.note(connection, self._faults[0], now_us())
                del self._faults[0]

    def _end_all(self, database: Database) -> None:
        """Accept no more boards, let the worker finish those that it has begun, then end the others."""
        with suppress(DatabaseError), database.writing() as connection:
            if states.intake(connection) is Intake.OPEN:
                states.change(connection, Subject.INTAKE, Intake.DRAINING, by=Process.SUPERVISOR, now_us=now_us())
        self._has_told = True
        _end([self.children[Process.WORKER]], self.config.drain_s + GRACE_S)
        _end([child for child in self._children if child.process is not Process.WORKER], GRACE_S)


def _end(children: Sequence[Child], most_s: float) -> None:
    """Tell processes to end, and kill those that take too long."""
    for child in children:
        if child.running is not None:
            child.running.terminate()
    until_s = time.monotonic() + most_s
    for child in children:
        if child.running is not None:
            try:
                child.running.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.running.kill()
                child.running.wait()
            _forget(child)


def _forget(child: Child) -> None:
    assert child.running is not None
    assert child.running.stdin is not None
    child.running.stdin.close()
    child.running = None


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


def _answers(database: Database) -> bool:
    """Return whether worker and database answer."""
    with suppress(DatabaseError), database.reading() as connection:
        return states.living_worker(connection, now_us()) is not None
    return False
