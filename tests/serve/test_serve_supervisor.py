"""The supervisor starts what dies, with a bound; and what a service is made of."""

import os
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stations
from full_disk import disk_of
from serve_rows import decision, ng
from serving import activated, config_of
from stations import DARK, LIGHT, accept
from tiny_line import TINY, Call
from waiting import eventually

from coe.board import calibration_file
from coe.cli.start import way_out
from coe.core import Verdict
from coe.errors import CoeError, ConfigError
from coe.helpers.files import NotWritten, alone
from coe.serve import backup, service_config, silent_worker, supervisor
from coe.serve import command as serve
from coe.serve.bridge import sink_settings
from coe.serve.clock import DAY_US, HOUR_US, now_us
from coe.serve.creation import Wanted, create
from coe.serve.database import (
    board_rows,
    call_rows,
    decisions,
    fault_log,
    keys,
    outbox,
    recipe_versions,
    states,
    verifications,
    views,
)
from coe.serve.database.connecting import Database, open_database
from coe.serve.database.database_errors import DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import NewFault, NewVerification, NewView
from coe.serve.enums import FaultKind, Intake, Outcome, Process, Role, Subject
from coe.serve.picture_folder import PARTS, Pictures
from coe.serve.retention import remove_strays, sweep
from coe.serve.service_config import Retention, ServeConfig
from coe.serve.supervisor import SYSTEMD_SOCKET, Child, Supervisor, SystemdNotice, notify

SLEEPS = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
STAYS = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(900)",
]
DIES = [sys.executable, "-S", "-c", "raise SystemExit(3)"]


@pytest.fixture
def service(tmp_path: Path, sqlite_template: Path) -> Path:
    """The config file of a service with an empty database."""
    path = tmp_path / "serve.yaml"
    text = "station: test\nlisten: {port: 0}\ndrain_s: 1\nlimits: {free_share: 0}\n"  # whatever disk tests run on
    path.write_text(text, encoding="utf-8")
    (tmp_path / "data").mkdir()
    shutil.copy(sqlite_template, tmp_path / "data" / "serve.db")
    return path


@pytest.fixture
def database(service: Path) -> Iterator[Database]:
    found = open_database(service_config.load(service).database_url)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def supervised(service: Path, commands: dict[Process, Sequence[str]], until: Callable[[Supervisor], bool]) -> None:
    """Run a supervisor on this thread, which alone may set signal handlers, until a condition holds."""
    running = Supervisor(service, command=lambda process, path: commands[process])
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            eventually(lambda: until(running), 30)
        except BaseException as error:
            errors.append(error)
        finally:
            running.end()

    helper = threading.Thread(target=watch)
    helper.start()
    running.run()
    helper.join()
    if errors:
        raise errors[0]


def fault_kinds(database: Database) -> list[tuple[FaultKind, str]]:
    with database.reading() as connection:
        return [(fault.kind, fault.about) for fault in fault_log.newest(connection)]


def test_a_process_that_dies_is_started_again_later_and_later_and_the_others_go_on(
    service: Path, database: Database
) -> None:
    gates = set()

    def until(running: Supervisor) -> bool:
        gate = running.children[Process.GATE].running
        gates.add(gate.pid if gate else None)
        return running.children[Process.WORKER].pause_s >= 4

    supervised(service, {Process.GATE: SLEEPS, Process.WORKER: DIES}, until)
    assert len(gates - {None}) == 1
    assert fault_kinds(database) == [(FaultKind.PROCESS_DIED, "worker")]
    assert database.read(fault_log.newest)[0].times >= 3


ENDS = {
    "raise ValueError('no such thing')": ["status 1", "ValueError: no such thing"],
    "import sys; sys.exit('worker: no folder is there.')": ["status 1: no folder is there; it starts"],
    "import os; os.write(2, b'terminate called\\n---\\n'); os.abort()": ["signal 6", "terminate called"],
    "import os, signal, sys; print('all is well', file=sys.stderr); os.kill(os.getpid(), signal.SIGKILL)": [
        "signal 9 (Killed), as where memory is short; it starts"
    ],
    "import os, subprocess; subprocess.Popen(['sleep', '30']); os._exit(7)": ["status 7; it starts"],
}


@pytest.mark.parametrize("code", ENDS)
def test_a_fault_says_how_a_process_ended_and_what_it_said_last(
    service: Path, database: Database, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = [sys.executable, "-S", "-c", code]
    commands = {Process.GATE: SLEEPS, Process.WORKER: worker}
    supervised(service, commands, lambda running: running.children[Process.WORKER].pause_s > 0.5)
    [fault] = database.read(fault_log.newest)
    log = capfd.readouterr().err
    assert all(words in fault.message and words in log for words in ENDS[code]), fault.message
    assert ("all is well" in fault.message, "all is well" in log) == (False, "all is well" in code)


@pytest.mark.parametrize(
    ("place", "work", "answers_again"),
    [
        (silent_worker.SilentWorker, "look", True),
        (silent_worker.SilentWorker, "look", False),
        (fault_log, "note", True),
    ],
)
def test_a_disk_that_does_not_answer_is_told_and_stops_neither_the_care_for_processes_nor_the_end(
    service: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: object,
    work: str,
    answers_again: bool,
) -> None:
    answers, told, gates, do = threading.Event(), list[str](), set[int](), getattr(place, work)

    def hang(*given: Any) -> Any:
        answers.wait()
        return do(*given)

    def until(running: Supervisor) -> bool:
        told.append(capfd.readouterr().err)
        gate = running.children[Process.GATE].running
        if gate is not None:
            gates.add(gate.pid)
            gate.kill()
        is_told = "does not answer" in "".join(told)
        if is_told and answers_again:
            answers.set()
        return is_told and len(gates) > 1 and (not answers_again or "did not answer" in "".join(told))

    monkeypatch.setattr(supervisor, "SILENT_S", 0.6)  # a second, in the message
    monkeypatch.setattr(supervisor, "GRACE_S", 0.5)
    monkeypatch.setattr(place, work, hang)
    if not answers_again:  # then nobody waits for a worker that waits for the disk
        service.write_text(service.read_text().replace("drain_s: 1", "drain_s: 600"))
    try:
        supervised(service, {Process.GATE: SLEEPS, Process.WORKER: SLEEPS if answers_again else STAYS}, until)
    finally:
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "records":  # else it says in another test what it says at last
                thread.join()
    assert "for 0 s" not in "".join(told)
    if answers_again:
        faults = {fault.kind: fault.cleared_us for fault in database.read(fault_log.newest)}
        assert faults[FaultKind.DATABASE] is not None
        assert faults[FaultKind.PROCESS_DIED] is None


@pytest.mark.parametrize(
    ("place", "work"),
    [(fault_log, "note"), (silent_worker.SilentWorker, "_look"), (silent_worker.SilentWorker, "_try_to_write")],
)
def test_a_database_that_others_hold_is_told_although_no_gate_is_there_to_say_so(
    service: Path,
    database: Database,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    work: str,
) -> None:
    monkeypatch.setattr(supervisor, "NOTIFY_S", 0.05)
    monkeypatch.setattr(silent_worker, "SILENT_S", 0.2)
    told = list[str]()

    def until(running: Supervisor) -> bool:
        told.append(capfd.readouterr().err)
        return running.children[Process.GATE].pause_s > 1 and "it is locked" in "".join(told)

    def refused(*given: Any) -> None:
        raise DatabaseError(DatabaseErrorKind.BUSY, "it is locked")

    monkeypatch.setattr(place, work, refused)
    supervised(service, {Process.GATE: DIES, Process.WORKER: SLEEPS}, until)
    assert "".join(told).count("it is locked") == 1


def test_a_disk_that_does_not_answer_at_the_start_is_told(
    service: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers, opened = threading.Event(), open_database
    monkeypatch.setattr(supervisor, "SILENT_S", 0.1)
    monkeypatch.setattr(supervisor, "open_database", lambda url: opened(url) if answers.wait() else None)

    def until(running: Supervisor) -> bool:
        if "does not answer" in capfd.readouterr().err:
            answers.set()
        return all(child.running for child in running.children.values())

    supervised(service, {Process.GATE: SLEEPS, Process.WORKER: SLEEPS}, until)


def test_a_config_that_is_edited_while_the_service_runs_is_that_of_its_next_start(
    service: Path, database: Database
) -> None:
    def until(running: Supervisor) -> bool:
        service.write_text("station: [", encoding="utf-8")
        return Process.GATE in database.read(states.heartbeats)

    gate = supervisor.command_of(Process.GATE, service)
    supervised(service, {Process.GATE: gate, Process.WORKER: SLEEPS}, until)
    assert fault_kinds(database) == []


def test_a_process_that_cannot_be_started_is_tried_again_and_the_others_go_on(
    service: Path, database: Database
) -> None:
    """As on a machine that has no memory left for a moment."""

    def until(running: Supervisor) -> bool:
        line, gate = running.children[Process.WORKER], running.children[Process.GATE]
        return line.pause_s > 0.5 and line.running is None and gate.running is not None

    supervised(service, {Process.GATE: SLEEPS, Process.WORKER: ["/no/such/program"]}, until)
    assert fault_kinds(database) == [(FaultKind.PROCESS_DIED, "worker")]


def test_a_process_whose_log_finds_no_thread_is_tried_again(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    child, config = Child(Process.GATE), service_config.load(service)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert "can't start new thread" in child.care(SLEEPS, config, 0.0)
    assert child.running is None
    assert child.care(SLEEPS, config, child.starts_s) == ""
    child.forget()


def test_faults_of_sinks_and_folders_that_the_config_has_no_longer_are_over(service: Path, database: Database) -> None:
    with service.open("a", encoding="utf-8") as file:
        file.write("sinks: {mqtt: {plant: {host: localhost}}}\n")
    with database.writing() as connection:
        for process, kind, about in (
            (Process.BRIDGE, FaultKind.SINK, "plant"),
            (Process.BRIDGE, FaultKind.SINK, "mes"),
            (Process.GATE, FaultKind.FOLDER, "camera1"),
        ):
            fault_log.note(connection, NewFault(process, kind, "x", about), now_us())
    three = dict.fromkeys((Process.GATE, Process.WORKER, Process.BRIDGE), SLEEPS)
    supervised(service, three, lambda running: all(child.running for child in running.children.values()))
    with database.reading() as connection:
        assert [fault.about for fault in fault_log.open_faults(connection)] == ["plant"]


STANDS_STILL = """
import os, signal, sys
from coe.serve.clock import now_us
from coe.serve.database import states
from coe.serve.database.connecting import open_database
from coe.serve.enums import Process
with open_database(sys.argv[1]).writing() as connection:
    states.beat(connection, Process.WORKER, pid=os.getpid(), now_us=now_us())
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_worker_that_stands_still_is_killed_and_started_again(
    service: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = service_config.load(service)
    soon = config.model_copy(update={"line": config.line.model_copy(update={"hangs_after_s": 0.5})})
    monkeypatch.setattr(supervisor, "load", lambda path: soon)
    monkeypatch.setattr(supervisor, "NOTIFY_S", 0.1)
    monkeypatch.setattr(silent_worker, "SILENT_S", 0.2)
    monkeypatch.setattr(silent_worker, "STARTS_FOR", 1000)
    worker = [sys.executable, "-c", STANDS_STILL, config.database_url]
    pids = set()

    def until(running: Supervisor) -> bool:
        child = running.children[Process.WORKER].running
        pids.add(child.pid if child else None)
        return len(pids - {None}) >= 2

    supervised(service, {Process.GATE: SLEEPS, Process.WORKER: worker}, until)
    assert sorted(fault_kinds(database)) == [(FaultKind.PROCESS_DIED, "worker"), (FaultKind.PROCESS_SILENT, "worker")]
    with database.reading() as connection:
        messages = {fault.kind: fault.message for fault in fault_log.newest(connection)}
    assert "no sign of life" in messages[FaultKind.PROCESS_DIED]


def test_the_bridge_runs_where_the_config_has_sinks_which_are_told_from_the_start(
    service: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Process.BRIDGE not in Supervisor(service).children
    with service.open("a", encoding="utf-8") as file:
        file.write("sinks: {mqtt: {plant: {host: localhost}}}\n")
    three = dict.fromkeys((Process.GATE, Process.WORKER, Process.BRIDGE), SLEEPS)
    supervised(service, three, lambda running: all(child.running for child in running.children.values()))
    with database.reading() as connection:
        # The end in order is the first thing that happened.
        assert [(queue.sink, queue.waiting) for queue in outbox.queues(connection)] == [("plant", 1)]
    monkeypatch.setattr(sink_settings, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"sinks\.mqtt needs paho-mqtt"):
        Supervisor(service).run()


def test_an_end_in_order_drains_and_the_next_start_accepts_boards_again(service: Path, database: Database) -> None:
    both = {Process.GATE: SLEEPS, Process.WORKER: SLEEPS}

    def is_running(running: Supervisor) -> bool:
        is_open = database.read(states.intake) is Intake.OPEN
        return is_open and all(child.running for child in running.children.values())

    for _ in range(2):
        supervised(service, both, is_running)
        assert database.read(states.intake) is Intake.DRAINING


def test_a_drain_that_a_person_asked_for_outlives_the_service(service: Path, database: Database) -> None:
    database.write(states.change, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=now_us())
    supervised(service, {Process.GATE: SLEEPS, Process.WORKER: SLEEPS}, lambda running: True)
    newest = database.read(states.current, Subject.INTAKE)
    assert newest.changed_by == "ann"


def test_two_services_do_not_share_a_folder(service: Path) -> None:
    def second(running: Supervisor) -> bool:
        if not all(child.running for child in running.children.values()):
            return False
        with pytest.raises(ConfigError, match="another service is running here"):
            Supervisor(service).run()
        return True

    supervised(service, {Process.GATE: SLEEPS, Process.WORKER: SLEEPS}, second)


@pytest.mark.parametrize(
    ("change", "said"),
    [("UPDATE alembic_version SET version_num = '0009'", "--take-from"), ("DELETE FROM alembic_version", "mounted")],
)
def test_a_service_of_another_schema_does_not_start(service: Path, database: Database, change: str, said: str) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql(change)
    with pytest.raises(ConfigError, match=said):
        Supervisor(service).run()


def test_other_machines_need_a_key(service: Path, tmp_path: Path, database: Database) -> None:
    service.write_text(
        "station: test\nlisten: {host: 0.0.0.0, port: 0, certificate: c.pem, private_key: k.pem}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match="there is no valid key"):
        Supervisor(service).run()


def test_a_port_that_another_program_has_is_named(service: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        service.write_text(service.read_text().replace("port: 0", f"port: {port}"))
        with pytest.raises(ConfigError, match=f"port {port}"):
            Supervisor(service).run()


def test_a_folder_that_cannot_be_written_is_named(service: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    service.write_text(service.read_text() + "data: file/data\n")
    with pytest.raises(ConfigError, match="cannot write into its folder"):
        Supervisor(service).run()


def test_systemd_is_told_only_when_line_and_database_have_answered(
    service: Path, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "NOTIFY_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "n"))
        systemd.setblocking(False)
        monkeypatch.setenv(SYSTEMD_SOCKET, str(tmp_path / "n"))
        told: list[bytes] = []
        begun = time.monotonic()

        def until(running: Supervisor) -> bool:
            try:
                told.append(systemd.recv(100))
            except BlockingIOError:
                if not told and time.monotonic() - begun > 0.5:
                    database.write(states.beat, Process.WORKER, pid=os.getpid(), now_us=now_us(), facts={})
            return len(told) >= 3

        supervised(service, {Process.GATE: SLEEPS, Process.WORKER: SLEEPS}, until)
        assert systemd.recv(100) in (SystemdNotice.ALIVE.encode(), SystemdNotice.STOPPING.encode())
    assert told[:3] == [SystemdNotice.READY.encode(), SystemdNotice.ALIVE.encode(), SystemdNotice.ALIVE.encode()]
    monkeypatch.delenv(SYSTEMD_SOCKET)
    assert not notify(SystemdNotice.ALIVE)


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "prometheus_client"])
def test_a_service_without_a_library_of_its_gate_does_not_start(
    service: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError) as missing:
        Supervisor(service).run()
    assert (missing.value.name, "coe-vision[serve]" in way_out(missing.value)) == (library, True)


def test_init_makes_a_service_and_its_keys_are_for_its_owner_alone(own_tiny: tuple[Path, Path], call: Call) -> None:
    board, store = own_tiny
    folder = board.parent / "service"
    said = call("init", folder, "--board", board, "--store", store, "--memory", "100MB", command=serve)
    assert (said.status, "recipe 'tiny' is active" in said.out) == (0, True)
    made = service_config.load(folder / "serve.yaml")
    assert (made.line.store, made.line.options("b").memory) == (store, 100_000_000)
    assert (folder / "keys.json").stat().st_mode & 0o777 == 0o600
    database = open_database(made.database_url)
    with database.reading() as connection:
        active = recipe_versions.active(connection, "tiny")
        assert active is not None
        assert {key.role for key in keys.all_keys(connection)} == set(Role)
    database.close()
    again = call("init", folder, "--board", board, "--store", store, command=serve)
    assert (again.status, "is there already" in again.words) == (2, True)
    for lost in ("serve.yaml", "keys.json"):
        (folder / lost).rename(board.parent / lost)
    again = call("init", folder, "--board", board, "--store", store, command=serve)
    assert (again.status, "of another service" in again.words, [*folder.iterdir()]) == (2, True, [folder / "data"])
    for lost in ("serve.yaml", "keys.json"):
        (board.parent / lost).rename(folder / lost)
    assert call("verify-audit", folder / "serve.yaml", command=serve).status == 0
    assert call("migrate", folder / "serve.yaml", command=serve).out == "the database has the newest schema\n"


def test_keys_are_made_listed_and_ended(service: Path, database: Database, call: Call) -> None:
    key = call("add-key", service, "printer", "--role", "feeder", "--days", 3, command=serve).out.strip()
    held = database.read(keys.holder, key, now_us())
    assert (held.name, held.role, held.expires_us is not None) == ("printer", Role.FEEDER, True)
    twice = call("add-key", service, "printer", "--role", "engineer", command=serve)
    assert (twice.status, "there is a key 'printer' already" in twice.words) == (2, True)
    assert call("list-keys", service, command=serve).out.startswith("printer  feeder  until 2")
    assert call("revoke-key", service, "printer", command=serve).status == 0
    assert call("revoke-key", service, "printer", command=serve).status == 2
    assert database.read(keys.holder, key, now_us()) is None
    assert call("verify-audit", service, command=serve).out.startswith("2 entries are sound")


@pytest.mark.parametrize(
    ("kind", "allowed", "lacks"),
    [
        ("narrow", "", "have no weights"),
        ("line7:Own", "", "--allow-kind line7"),
        ("line7:Own", "line7", "no module line7 is installed"),
        ("line7.inner:Own", "line7", r"no module line7\.inner is installed"),
    ],
)
def test_a_board_that_cannot_run_makes_no_service(
    own_tiny: tuple[Path, Path], kind: str, allowed: str, lacks: str
) -> None:
    board, store = own_tiny
    board.write_text(board.read_text().replace("kind: narrow,", f"kind: {kind},"))
    shutil.rmtree(store)
    with pytest.raises(CoeError, match=lacks):
        create(board.parent / "service", Wanted(str(board), store, allow_kinds=[allowed] if allowed else []))
    assert not (board.parent / "service").exists()


@pytest.mark.parametrize("wrong", [["--memory", "much"], ["--within", "-5"], ["--within", "nan"]])
def test_options_that_cannot_be_taken_leave_the_place_to_the_next_try(
    own_tiny: tuple[Path, Path], call: Call, wrong: list[str]
) -> None:
    board, store = own_tiny
    given = ["init", board.parent / "line7", "--board", board, "--store", store]
    assert call(*given, *wrong, command=serve).status == 2
    assert call("init", board.parent / "line7", *wrong, command=serve).status == 2
    assert call(*given, command=serve).status == 0


def test_a_service_cannot_be_made_where_a_file_lies(own_tiny: tuple[Path, Path], call: Call) -> None:
    board, store = own_tiny
    for place in (board, board / "line7"):
        assert call("init", place, "--board", board, "--store", store, command=serve).status == 4


def test_who_makes_a_service_waits_for_another_who_makes_one_there(own_tiny: tuple[Path, Path]) -> None:
    board, store = own_tiny
    with ThreadPoolExecutor() as threads:
        with alone(board.parent):
            made = threads.submit(create, board.parent, Wanted(str(board), store))
            time.sleep(0.2)  # it would come to its end meanwhile
            (board.parent / "serve.yaml").touch()
        assert isinstance(made.exception(), ConfigError)


def test_the_recipe_of_a_new_service_carries_the_calibration_of_its_board(own_tiny: tuple[Path, Path]) -> None:
    board, store = own_tiny
    text = "board: tiny\nexperts: {body-a: {temperature: 2}}\n"
    calibration_file.path_for(board).write_text(text)
    made = create(board.parent / "service", Wanted(str(board), store))
    database = open_database(service_config.load(made.config).database_url)
    recipe = database.read(recipe_versions.active, made.recipe)
    database.close()
    assert recipe.content["calibration"] == text


def test_nobody_else_can_read_the_keys_while_they_are_written(
    own_tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}
    sync = os.fsync

    def see(number: int) -> None:
        seen[Path(os.readlink(f"/proc/self/fd/{number}")).name] = stat.S_IMODE(os.fstat(number).st_mode)
        sync(number)

    monkeypatch.setattr(os, "fsync", see)
    board, store = own_tiny
    made = create(board.parent / "service", Wanted(str(board), store))
    assert stat.S_IMODE(made.keys.stat().st_mode) == 0o600
    assert {mode for name, mode in seen.items() if "keys.json" in name} == {0o600}


def test_a_new_service_has_its_secrets_so_that_no_page_needs_room_on_the_disk(own_tiny: tuple[Path, Path]) -> None:
    board, store = own_tiny
    made = create(board.parent / "service", Wanted(str(board), store))
    data = service_config.load(made.config).data
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.glob("*.secret")} == {
        "session.secret": 0o600,
        "archive.secret": 0o600,
    }


@pytest.fixture
def filled(service: Path, database: Database) -> ServeConfig:
    settings = service_config.load(service)
    recipe = activated(database, TINY)
    accept(settings, database, recipe.id, {"R1": LIGHT, "R2": DARK})
    return settings


COMMANDS = {
    serve.migrate: (),
    serve.list_keys: (),
    serve.verify_audit: (),
    serve.add_key: ("k", Role.ENGINEER, None),
    serve.revoke_key: ("k",),
    serve.backup: (Path("copy"),),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_not_there_or_none_is_named(
    service: Path, command: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = service.parent / "data"
    (data / "serve.db").write_text("This is no database, however long one reads in it.")
    with pytest.raises(CoeError, match=str(data / "serve.db")):
        command(service, *COMMANDS[command])
    shutil.rmtree(data)
    with pytest.raises(ConfigError, match=f"{data} is not there"):
        command(service, *COMMANDS[command])
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigError, match=f"{data}; be the user of the service"):
        open_database(f"sqlite:///{data}/serve.db")


def refuse(path: Path, **how: bool) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_commands_do_in_another_schema_what_is_the_same_there_and_name_it_else(
    service: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with database.writing() as connection:
        keys.add(connection, "k", Role.ENGINEER, keys.generate(), now_us=1)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0009'")
    serve.verify_audit(service)
    serve.revoke_key(service, "k")
    with database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE api_key DROP COLUMN pin_hash")
    with pytest.raises(ConfigError, match="schema 0009"):
        serve.list_keys(service)


def test_a_backup_can_take_the_place_of_the_data(
    filled: ServeConfig, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = set[int]()
    monkeypatch.setattr(os, "fsync", lambda number: saved.add(os.fstat(number).st_ino))
    with database.writing() as connection:
        key = keys.add(connection, "ann", Role.OPERATOR, keys.generate(), now_us=1)
        keys.begin_session(connection, key, "a", now_us=1, ends_us=10)
    (photo := filled.data / "teach" / "line7" / "photos" / "R10k" / "good" / "P1.png").parent.mkdir(parents=True)
    photo.write_bytes(LIGHT)
    made = backup.back_up(filled, tmp_path / "copy")
    assert saved >= {path.stat().st_ino for path in (tmp_path / "copy").rglob("*")}
    assert (tmp_path / "copy" / photo.relative_to(filled.data)).read_bytes() == LIGHT
    assert (made.pictures, made.missing) == (2, 0)
    with database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM view")
    restored = config_of(tmp_path / "copy")
    copy = open_database(restored.database_url)
    with copy.reading() as connection:
        found = views.of_board(connection, "k1")
        # A person who signs out after the backup must not be signed in by it.
        assert keys.of_session(connection, "a", 1, 10) is None
    copy.close()
    assert [Pictures(restored.pictures).path(view.file).read_bytes() for view in found] == [LIGHT, DARK]
    with pytest.raises(ConfigError, match="is there already"):
        backup.back_up(filled, tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match=r"elsewhere.serve\.db has no tables"):
        backup.back_up(config_of(tmp_path / "elsewhere"), tmp_path / "more")
    assert not list((tmp_path / "elsewhere").iterdir())
    with disk_of(50_000), pytest.raises(NotWritten):
        backup.back_up(filled, tmp_path / "more")
    with database.reading() as connection:
        page = connection.exec_driver_sql("SELECT rootpage FROM sqlite_master WHERE name = 'view'").scalar_one()
        size = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    database.shorten_log()
    with (filled.data / "serve.db").open("rb+") as damaged:
        damaged.seek((page - 1) * size)
        damaged.write(b"?" * size)
    with pytest.raises(ConfigError, match=f"{filled.data / 'serve.db'} is damaged"):
        backup.back_up(filled, tmp_path / "more")
    assert not [path for path in tmp_path.iterdir() if "more" in path.name]


def test_pictures_go_after_their_time_and_none_while_it_is_needed(filled: ServeConfig, database: Database) -> None:
    pictures, keep = Pictures(filled.pictures), Retention(ok_days=1, review_days=2, ng_days=3, orphan_days=4)

    def left(days: float) -> int:
        sweep(database, pictures, keep, now_us() + round(days * DAY_US))
        return sum(path.is_file() for path in filled.pictures.rglob("*"))

    assert left(1000) == 2  # the board is not decided
    with database.writing() as connection:
        board = board_rows.of_key(connection, "k1")
        assert board is not None
        decision = decisions.Decision(board, ng().verdict, now_us(), False, [ng("R2")], [], [])
        assert decisions.write(connection, decision)
    assert left(1000) == 2  # a call is open
    with database.writing() as connection:
        (call,) = call_rows.open_calls(connection)
        verifications.record_verification(connection, call, NewVerification(Outcome.CONFIRMED, now_us(), "op"))
    assert left(2.5) == 2
    assert left(3.5) == 0


def test_a_board_whose_pictures_are_gone_is_not_looked_at_again(filled: ServeConfig, database: Database) -> None:
    with database.writing() as connection:
        board = board_rows.of_key(connection, "k1")
        assert board is not None
        assert decisions.write(connection, decision(board, at_us=now_us()))
    pictures, keep, later_us = Pictures(filled.pictures), Retention(ok_days=1), now_us() + 2 * DAY_US
    assert sweep(database, pictures, keep, now_us()) == 0
    assert len(database.read(views.expired, Verdict.OK, later_us, later_us, after_id=0, limit=9)) == 2
    assert sweep(database, pictures, keep, later_us) == 2
    with database.writing() as connection:
        # A sweep would remove this one, too, if it looked at the board.
        views.add(connection, NewView("k1", "R9", "00/late.png", "a" * 64, 10, 100, now_us()))
        assert views.expired(connection, Verdict.OK, later_us, later_us, after_id=0, limit=9) == []


def test_what_came_while_a_clock_was_not_set_or_ahead_is_as_old_as_what_came_next(
    service: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, recipe = service_config.load(service), activated(database, TINY)
    pictures, keep = Pictures(config.pictures), Retention(ok_days=1, orphan_days=1)

    def come(key: str, at_us: int) -> None:
        monkeypatch.setattr(stations, "now_us", lambda: at_us)
        board = accept(config, database, recipe.id, {"R1": LIGHT}, key=key)
        with database.writing() as connection:
            assert decisions.write(connection, decision(board, at_us=at_us))
            views.add(connection, NewView(f"no-{key}", "R1", f"00/{key}.png", "a" * 64, 10, 100, at_us))

    def left(at_us: int, free_share: float = 1.0, since_us: int | None = None) -> int:
        sweep(database, pictures, keep, at_us, since_us=since_us, free_share=lambda: free_share)
        with database.reading() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM view").scalar_one()

    set_us = now_us()
    for name, at_us in {"without": 1, "ahead": set_us + 9000 * DAY_US}.items():
        come(name, at_us)
    assert left(set_us) == 4, "they may have come a minute ago"
    come("with", set_us)
    assert left(set_us + HOUR_US) == 6
    assert left(set_us + DAY_US + 1, since_us=set_us + HOUR_US) == 0
    come("without a clock since", 9)
    assert left(DAY_US) == 2
    keep = Retention(free_share=0.5)
    assert left(set_us, free_share=0.1) == 1, "room is made of boards whose time nobody knows, too"


def test_pictures_without_a_board_are_looked_for_since_the_last_sweep(filled: ServeConfig, database: Database) -> None:
    with database.writing() as connection:
        for name, came_us in (("R1", 0), ("R2", 10 * DAY_US)):
            views.add(connection, NewView("nobody", name, f"00/{name}.png", "a" * 64, 10, 100, came_us))
    pictures, keep = Pictures(filled.pictures), Retention(orphan_days=1)
    assert sweep(database, pictures, keep, 20 * DAY_US, since_us=9 * DAY_US) == 1
    assert sweep(database, pictures, keep, 20 * DAY_US) == 1


def test_pictures_without_a_board_and_of_aborted_boards_go(filled: ServeConfig, database: Database) -> None:
    pictures = Pictures(filled.pictures)
    with database.writing() as connection:
        board = board_rows.of_key(connection, "k1")
        assert board is not None
        assert board_rows.abort(connection, board, now_us(), reason="no")
        view = views.of_board(connection, "k1")[0]
    assert sweep(database, pictures, Retention(), now_us()) == 0
    assert sweep(database, pictures, Retention(), now_us() + 2 * DAY_US) == 2
    assert not pictures.path(view.file).exists()


def strays(database: Database, pictures: Pictures, moment_us: int) -> int:
    return sum(remove_strays(database, pictures, part, moment_us) for part in range(PARTS))


def test_what_a_crash_left_without_a_row_goes(filled: ServeConfig, database: Database) -> None:
    pictures = Pictures(filled.pictures)
    receiving = pictures.receive()
    receiving.write(LIGHT)
    stray = receiving.keep()
    (filled.pictures / "incoming" / "half").write_bytes(b"half")
    assert strays(database, pictures, now_us() + DAY_US - HOUR_US) == 0  # a younger file may be about to get its row
    assert strays(database, pictures, now_us() + DAY_US + HOUR_US) == 1
    assert not pictures.path(stray).exists()
    with database.reading() as connection:
        assert all(pictures.path(view.file).exists() for view in views.of_board(connection, "k1"))
    pictures.prepare()
    assert list((filled.pictures / "incoming").iterdir()) == []
