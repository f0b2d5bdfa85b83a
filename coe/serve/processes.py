"""The two processes of a service, `web` and `worker`, and `coe-serve run`, which starts both on a desk.

Neither holds anything that the database does not have, so either may be killed at any moment and started again: by
systemd or compose (docs/operations.md), or by `run`. `python -m coe.serve.processes web CONFIG` is a process of `run`;
it ends in order when its standard input ends, because then `run` is gone.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
from sqlalchemy import Connection

from coe.cli.common import Exit, guarded
from coe.errors import ConfigError
from coe.helpers.files import FolderLock
from coe.serve.clock import SECOND_US, now_us
from coe.serve.credentials import make_all, place_of
from coe.serve.database import event_log, fault_log, states
from coe.serve.database.connecting import Database, DatabaseError, open_database
from coe.serve.database.migration import expect_newest
from coe.serve.database.tables import NewFault
from coe.serve.enums import FaultKind, Intake, LineState, Process, Subject
from coe.serve.service_config import ServeConfig, load
from coe.serve.systemd import ALIVE, STOPPING, notify

STARTS_FOR = 5  # a worker that starts has so many times `line.hangs_after_s`
ALIVE_S = 1.0  # how often the worker says that its loop turns
HUNG = 3  # the exit status of a worker that ended because an expert did not return
LOOK_S, PAUSE_S, GRACE_S = 0.1, 1.0, 10.0
"""How often `run` looks at its processes, the pause before it starts one again, and how long an ordered end may take
beyond the time for begun boards."""


@contextmanager
def opened(config: ServeConfig, process: Process) -> Iterator[Database]:
    """Open the database for a process of the service, which is there once; raises ConfigError.

    A process that did not end in order leaves a fault to the next: its own log says why.
    """
    with ExitStack() as held:
        held.callback(_only(config, process).release)
        database = open_database(config.database_url)
        held.callback(database.close)
        expect_newest(database)
        with suppress(OSError):  # of a service that an older version made; without room, whoever needs one says so
            make_all(config.data)
        database.write(_begin, config, process)
        try:
            yield database
        finally:
            notify(STOPPING)
            if not isinstance(sys.exception(), Exception):  # else the next one says that this one ended by itself
                with suppress(DatabaseError):  # its last sign of life gets old, and says the same
                    database.write(states.leave, process)


def _only(config: ServeConfig, name: str) -> FolderLock:
    """Return the lock of the only process, or the only `run`, of a service; raises ConfigError."""
    if (lock := _free(config, name)) is None:
        raise ConfigError(f"{config.data}: another {name} is running here; end it")
    return lock


def _free(config: ServeConfig, name: str) -> FolderLock | None:
    """Return the lock of a process, or of `run`; None while another holds it. Raises ConfigError."""
    path = config.data / f".{name}.lock"
    try:
        config.data.mkdir(parents=True, exist_ok=True)
        return FolderLock.take_file(path, wait=False)
    except OSError as error:
        raise ConfigError(
            f"the service cannot write into its folder: {path}: {error.strerror or error}; give it write permission, "
            "or another `data`"
        ) from None


def _begin(connection: Connection, config: ServeConfig, process: Process) -> None:
    """Note that a process begins, and who is told of what happens from now on; raises ConfigError."""
    place, moment_us = place_of(config.data), now_us()
    beats = states.heartbeats(connection)
    for beat in beats.values():
        if place and states.lives(beat, moment_us) and place != (beat.facts.get("place") or place):
            raise ConfigError(
                "database: another station uses it; stop that station, or give each station its own database"
            )
    before = beats.get(process)
    if before is not None and before.pid and before.beat_us > psutil.boot_time() * SECOND_US:
        why = f"the {process} (process {before.pid}) was killed, or ended by itself; see its log"
        fault_log.note(connection, NewFault(process, FaultKind.PROCESS_DIED, why, process), moment_us)
    event_log.register_sinks(connection, config.sinks.names, moment_us)
    gone = {FaultKind.SINK: config.sinks.names, FaultKind.FOLDER: list(config.folders), FaultKind.CERTIFICATE: []}
    for kind, names in gone.items():
        fault_log.clear_gone(connection, kind, names, by=process, now_us=moment_us)
    if process is Process.WORKER:
        newest = states.current(connection, Subject.INTAKE)
        if newest is not None and newest.state == Intake.DRAINING and newest.changed_by == process:
            states.change(connection, Subject.INTAKE, Intake.OPEN, by=process, now_us=moment_us)
        states.change(connection, Subject.LINE, LineState.STARTING, by=process, now_us=moment_us)
        states.beat(connection, process, pid=os.getpid(), now_us=moment_us, facts={"place": place})


def web(config: ServeConfig) -> None:
    """Serve HTTP, tell the sinks, and watch over the worker, until SIGTERM or SIGINT; raises ConfigError."""
    from coe.serve.bridge import outbox_relay
    from coe.serve.bridge import sinks as sink_kinds
    from coe.serve.gate import server
    from coe.serve.worker_watch import WorkerWatch

    _end_at(lambda: sys.exit(0))
    with opened(config, Process.WEB) as database:
        server.expect_keys(config, database)
        server.expect_place(config.listen)
        sink_kinds.expect_packages(config.sinks)
        stop = threading.Event()
        sinks = sink_kinds.sinks_of(config.station, config.sinks)
        works = [partial(outbox_relay.tell, sinks, database, stop), partial(WorkerWatch(config, database).run, stop)]
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        try:
            asyncio.run(server.serve(config))
        finally:
            stop.set()
            for thread in threads:
                thread.join(GRACE_S)


def worker(config: ServeConfig) -> None:
    """Decide boards until SIGTERM or SIGINT; then no board is accepted, and begun boards are finished.

    If an expert does not return, the process ends at once with the status HUNG; if its own loop does not turn for
    `line.hangs_after_s`, with the traces of all threads in the log. Raises ConfigError if it cannot begin.
    """
    _end_at(lambda: sys.exit(0))
    with opened(config, Process.WORKER) as database:
        notify()
        _hangs_after(STARTS_FOR * config.line.hangs_after_s)
        try:
            _work(config, database)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _work(config: ServeConfig, database: Database) -> None:
    # Torch takes seconds to import: the sign of life that was given before says that the line starts.
    from coe.serve.worker.line_watch import LineHangs
    from coe.serve.worker.station import Station

    station, said_s = Station(config, database), time.monotonic()

    def turn() -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= ALIVE_S:
            said_s = time.monotonic()
            _hangs_after(config.line.hangs_after_s)
            notify(ALIVE)

    _end_at(station.end)
    try:
        station.run(turn, partial(_drain, database))
    except LineHangs as hang:
        sys.stderr.write(f"worker: {hang}\n")
        sys.stderr.flush()
        os._exit(HUNG)  # an exit in order would wait for the thread that never returns


def _hangs_after(seconds: float) -> None:
    """End this process after a while, unless this is called again: also one that hangs in native code."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)


def _drain(database: Database) -> None:
    """Accept no more boards; a drain that a person asked for, and a line that is held, stay as they are."""
    with suppress(DatabaseError), database.writing() as connection:
        if states.intake(connection) is Intake.OPEN:
            states.change(connection, Subject.INTAKE, Intake.DRAINING, by=Process.WORKER, now_us=now_us())


def _end_at(end: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


# Both on a desk


def run(path: Path) -> int:
    """Run both processes until SIGTERM or Ctrl-C, restart what ends, and return the exit status; raises ConfigError."""
    config, ending, begun = load(path), threading.Event(), set[Process]()
    _end_at(ending.set)
    was_killed = os.path.exists(config.data / ".run.lock")  # a `run` that ends in order removes it
    lock = _only(config, "run")
    if was_killed:
        _wait_for_former(config, ending)
    running = {process: _start(process, path) for process in (Process.WEB, Process.WORKER)}
    status = int(Exit.OK)
    try:
        while not ending.wait(LOOK_S):
            for process, child in running.items():
                if child.poll() is None:
                    continue
                if child.returncode == Exit.USAGE and process not in begun:
                    return child.returncode
                begun.add(process)
                sys.stderr.write(f"{process} ended with status {child.returncode}, and starts again\n")
                ending.wait(PAUSE_S)
                running[process] = _start(process, path)
    finally:  # the worker first: the web process answers until begun boards are finished
        for process, most_s in ((Process.WORKER, config.drain_s + GRACE_S), (Process.WEB, GRACE_S)):
            child = running[process]
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(most_s)
            except subprocess.TimeoutExpired:
                child.kill()
        lock.release()
    return status


def _wait_for_former(config: ServeConfig, ending: threading.Event) -> None:
    """Wait for the processes of a `run` that was killed, which end by themselves: the worker after begun boards."""
    ends_s, is_told = time.monotonic() + config.drain_s + GRACE_S, False
    for process in Process:
        while (lock := _free(config, process)) is None:
            if not is_told:
                sys.stderr.write(f"waiting up to {ends_s - time.monotonic():.0f} s for the {process} of a killed run\n")
            is_told = True
            if ending.wait(LOOK_S) or time.monotonic() >= ends_s:
                return
        lock.release()


def _start(process: Process, path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "coe.serve.processes", process, str(path.absolute())]
    group = {"process_group": 0} if os.name == "posix" else {"creationflags": 0x200}  # Ctrl-C is for `run` alone
    return subprocess.Popen(command, stdin=subprocess.PIPE, **group)  # type: ignore[call-overload, no-any-return]


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    signal.raise_signal(signal.SIGTERM)


def main() -> None:
    """Be the process of `run` that the arguments name."""
    work = {Process.WEB: web, Process.WORKER: worker}[Process(sys.argv[1])]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(guarded(lambda: work(load(Path(sys.argv[2]))) or Exit.OK))


if __name__ == "__main__":
    main()
