"""`web` and `worker` as processes: how they begin, end, are missed, killed and started again."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from killed import ALL, LEAST_KILLS, Feeder, check_one_decision_each, free_port, start, undecided
from serving import config_of
from sqlalchemy import delete, insert, select
from stations import DARK, LIGHT
from waiting import eventually

from coe.core import Verdict
from coe.errors import ConfigError
from coe.helpers.files import FolderLock
from coe.lab.workloads import synthetic
from coe.serve import processes, systemd
from coe.serve.bridge import sinks
from coe.serve.clock import now_us
from coe.serve.creation import Wanted, create
from coe.serve.database import board_rows, event_log, fault_log, recipe_versions, states, tables
from coe.serve.database.connecting import open_database
from coe.serve.database.tables import NewFault
from coe.serve.enums import ActivationState, FaultKind, Intake, LineState, Process, Subject
from coe.serve.processes import opened
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import load
from coe.serve.worker.station import MAX_ATTEMPTS

UNITS = Path(__file__).parents[2] / "docs" / "operations"
MQTT = {"mqtt": {"plant": {"host": "localhost"}}}


@pytest.fixture
def config(tmp_path, database):
    return config_of(tmp_path, database=database.url.render_as_string(hide_password=False), drain_s=2)


def faults(database):
    return [(one.process, one.kind, one.about) for one in database.read(fault_log.open_faults)]


def test_a_process_is_there_once_and_two_services_do_not_share_a_database(config, database, tmp_path):
    other = config_of(tmp_path / "other", database=config.database_url)
    with opened(config, Process.WORKER):
        with pytest.raises(ConfigError, match="another worker is running here"), opened(config, Process.WORKER):
            pass
        for process in Process:
            with pytest.raises(ConfigError, match="another station uses it"), opened(other, process):
                pass
        with opened(config, Process.WEB):
            pass
    with opened(other, Process.WORKER):  # the first one ended in order
        pass
    assert faults(database) == []


def test_a_process_that_was_killed_is_a_fault_that_the_next_one_writes(config, database):
    database.write(states.beat, Process.WORKER, pid=7, now_us=now_us(), facts={})
    with opened(config, Process.WORKER):
        assert faults(database) == [(Process.WORKER, FaultKind.PROCESS_DIED, "worker")]
    database.write(states.beat, Process.WEB, pid=7, now_us=1, facts={})  # before this machine was started
    with opened(config, Process.WEB):
        assert len(faults(database)) == 1


def test_an_end_of_the_worker_drains_and_its_start_accepts_boards_again_unless_a_person_drained(config, database):
    for by, after in ((None, Intake.OPEN), ("ann", Intake.DRAINING)):
        if by is not None:
            database.write(states.change, Subject.INTAKE, Intake.DRAINING, by=by, now_us=now_us())
        processes._drain(database)
        assert database.read(states.intake) is Intake.DRAINING
        with opened(config, Process.WORKER):
            assert (database.read(states.intake), database.read(states.line)) == (after, LineState.STARTING)


def test_sinks_are_told_from_the_start_and_faults_of_what_the_config_has_no_longer_are_over(
    config, database, monkeypatch
):
    for kind, about in ((FaultKind.SINK, "plant"), (FaultKind.SINK, "mes"), (FaultKind.FOLDER, "camera1")):
        database.write(fault_log.note, NewFault(Process.WEB, kind, "x", about), now_us())
    with_sink = config_of(config.data, database=config.database_url, sinks=MQTT)
    with opened(with_sink, Process.WORKER):
        assert faults(database) == [(Process.WEB, FaultKind.SINK, "plant")]
        # That the line starts is the first thing of which it is told.
        assert [queue.sink for queue in database.read(event_log.queues) if queue.waiting] == ["plant"]
    monkeypatch.setattr(sinks, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"sinks\.mqtt needs paho-mqtt"):
        processes.web(with_sink)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE alembic_version SET version_num = '0009'", "another version"),
        ("DELETE FROM alembic_version", "mounted"),
    ],
)
def test_a_service_of_another_schema_does_not_start(config, database, change, said):
    with database.writing() as connection:
        connection.exec_driver_sql(change)
    for process in Process:
        with pytest.raises(ConfigError, match=said), opened(config, process):
            pass


def test_what_cannot_be_served_is_named(config, tmp_path):
    far = config.model_copy(update={"listen": config.listen.model_copy(update={"host": "0.0.0.0"})})
    with pytest.raises(ConfigError, match="there is no valid key"):
        processes.web(far)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"):
            processes.web(config.model_copy(update={"listen": config.listen.model_copy(update={"port": port})}))
    (tmp_path / "file").write_text("")
    of_a_file = config_of(tmp_path / "file" / "d")
    with pytest.raises(ConfigError, match="cannot write into its folder"), opened(of_a_file, Process.WEB):
        pass


def test_systemd_is_told_where_it_asked(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "n"))
        monkeypatch.setenv(systemd.SOCKET, str(tmp_path / "n"))
        assert systemd.notify(systemd.ALIVE)
        assert listening.recv(100) == b"WATCHDOG=1"
    assert not systemd.notify()
    monkeypatch.delenv(systemd.SOCKET)
    assert not systemd.notify()


HANGS = """
from coe.serve import processes
import time
processes._hangs_after(0.2)
time.sleep(60)
"""


def test_a_loop_that_does_not_turn_ends_its_process_and_the_log_says_where_it_stood():
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "line 5" in ended.stderr


# ---- the units of systemd, run by a process manager of the test's own


class Unit:
    """A service of systemd as far as it is one process: started, watched, and started again, sooner than there."""

    def __init__(self, file, config, folder):
        text = file.read_text(encoding="utf-8")
        self.settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        words = self.settings["ExecStart"].replace("/etc/coe/serve.yaml", str(config)).split()
        self._command = [sys.executable, "-c", "from coe.cli.start import serve; serve()", *words[1:]]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / f"{file.stem}.notify"))
        self._socket.setblocking(False)
        self._environment = {**os.environ, systemd.SOCKET: str(folder / f"{file.stem}.notify")}
        self.pids, self.notices = list[int](), list[str]()
        self.start()

    def start(self):
        self.running = subprocess.Popen(self._command, env=self._environment)
        self.pids.append(self.running.pid)

    def hear(self):
        with suppress(BlockingIOError):
            while True:
                self.notices.append(self._socket.recv(100).decode())

    def look(self):
        self.hear()
        if self.running.poll() is not None:
            assert self.settings["Restart"] == "always"
            self.start()

    def stop(self):
        self.running.terminate()
        assert self.running.wait(60) == 0
        self.hear()
        self._socket.close()


@contextmanager
def units(config, folder):
    """Run the units of the docs until the block ends; the worker is stopped first, as it is started after web."""
    running = {name: Unit(UNITS / f"coe-{name}.service", config, folder) for name in ("web", "worker")}
    try:
        yield running
    finally:
        for unit in reversed(running.values()):
            unit.stop()


@pytest.fixture
def made(tmp_path):
    board, store = synthetic.synthetic_board(tmp_path, kind="resnet18", experts=2, input_size=32, seed=0)
    return create(tmp_path / "service", Wanted(str(board), store.root, "500MB", port=free_port())).config


def feeder_of(config, database, key, within_s=None):
    api_key = json.loads((config.data.parent / "keys.json").read_text(encoding="utf-8"))["feeder"]
    (recipe,) = database.read(recipe_versions.all_active)
    component = next(iter(RecipeContent.model_validate(recipe.content).board(recipe.name).components))
    views = {refdes: {"refdes": refdes, "component": component} for refdes in ("R1", "R2")}
    body = {"recipe": recipe.name, "views": views, "within_s": within_s}
    address = f"http://127.0.0.1:{config.listen.port}"
    feeder = Feeder(address, api_key, key, {"R1": LIGHT, "R2": DARK}, body)
    feeder.start()
    return feeder


@pytest.mark.slow
def test_the_units_start_again_what_is_killed_and_accepted_boards_are_decided_once(made, tmp_path):
    config = load(made)
    database = open_database(config.database_url)
    with units(made, tmp_path) as running:

        def turn():
            for unit in running.values():
                unit.look()
            return True

        for number in range(4):
            feeder = feeder_of(config, database, f"k{number}")
            if number:
                running[("web", "worker")[number % 2]].running.kill()
            eventually(lambda feeder=feeder: turn() and not feeder.is_alive())
        eventually(lambda: turn() and not undecided(database))
        eventually(lambda: turn() and all(systemd.ALIVE in unit.notices for unit in running.values()))
    check_one_decision_each(database)
    assert [len(unit.pids) for unit in running.values()] == [2, 3]
    for unit in running.values():
        assert (systemd.READY in unit.notices[:2], unit.notices[-1]) == (True, systemd.STOPPING)
    assert {kind for _, kind, _ in faults(database)} == {FaultKind.PROCESS_DIED}
    assert database.read(states.line) is LineState.DOWN
    database.close()


@pytest.mark.slow
def test_run_starts_both_again_and_ends_both_in_order(made):
    config = load(made)
    database = open_database(config.database_url)
    command = [sys.executable, "-c", "from coe.cli.start import serve; serve()", "run", str(made)]
    running = subprocess.Popen(command)
    try:
        for number, process in enumerate((None, *Process)):
            feeder = feeder_of(config, database, f"k{number}")
            if process is not None:
                os.kill(database.read(states.heartbeats)[process].pid, signal.SIGKILL)
            eventually(lambda feeder=feeder: not feeder.is_alive())
            eventually(lambda: not undecided(database))
    finally:
        running.terminate()
    assert running.wait(60) == 0
    check_one_decision_each(database)
    assert {beat.pid for beat in database.read(states.heartbeats).values()} == {0}
    assert [kind for _, kind, _ in faults(database)] == [FaultKind.PROCESS_DIED] * 2
    database.close()


def test_run_waits_for_processes_of_a_killed_run_alone_and_ends_with_a_process_that_cannot_begin(
    tmp_path, monkeypatch, capfd
):
    path, data = tmp_path / "serve.yaml", tmp_path / "data"
    path.write_text("station: a\n")
    data.mkdir()
    living, former = (FolderLock.take_file(data / f".{name}.lock", wait=False) for name in ("run", "worker"))
    with pytest.raises(ConfigError, match="another run is running here"):
        processes.run(path)
    living.release()
    (data / ".run.lock").touch()  # as one that was killed leaves it
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=lambda said: former.release()))
    assert processes.run(path) == 2
    assert "has no tables" in capfd.readouterr().err
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("data", ["data", "d" * 300])
def test_a_lock_that_cannot_be_taken_is_named_also_after_a_killed_run(tmp_path, data):
    path = tmp_path / "serve.yaml"
    path.write_text(f"station: a\ndata: {data}\n")
    if data == "data":
        (tmp_path / data / ".web.lock").mkdir(parents=True)  # as a lock of another user, it cannot be opened
        (tmp_path / data / ".run.lock").touch()
    with pytest.raises(ConfigError, match=r"cannot write into its folder: .*\.(web|run)\.lock"):
        processes.run(path)


LEAST_BOARDS = int(os.environ.get("COE_TEST_BOARDS", "1000"))
AT_ONCE, MOST_WAIT = 6, 60
"""How many feeders hand boards in at a time; with more boards that wait none comes, and nobody is killed."""


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_kills_of_both_processes_lose_no_board_decide_none_twice_and_pass_none_unseen(made, database, tmp_path):
    """The boards come by HTTP, without an end, while either process is killed at random moments."""
    chance, config = Random(11), load(made)
    if not database.is_sqlite:
        template = open_database(config.database_url)
        copied_to(database, template)
        config = config.model_copy(update={"database": database.url.render_as_string(hide_password=False)})
    database = open_database(config.database_url)
    running = {process: start(work, config) for process, work in WORKS.items()}
    kills, boards, feeders, began_s = dict.fromkeys(Process, 0), 0, list[Feeder](), time.monotonic()
    next_s, spares = began_s, False
    while sum(kills.values()) < LEAST_KILLS or boards < LEAST_BOARDS or feeders:
        feeders = [feeder for feeder in feeders if feeder.is_alive()]
        for process, one in running.items():
            if not one.is_alive():
                running[process] = start(WORKS[process], config)
        is_enough = sum(kills.values()) >= LEAST_KILLS and boards >= LEAST_BOARDS
        spares = undecided(database) > (MOST_WAIT // 5 if spares else MOST_WAIT)
        while len(feeders) < AT_ONCE and not is_enough and not spares:
            boards += 1
            feeders.append(feeder_of(config, database, f"k{boards}", within_s=20.0 if boards % 10 == 0 else None))
        if time.monotonic() >= next_s and not is_enough and not spares:
            next_s = time.monotonic() + chance.uniform(0.05, 4.0)
            process = chance.choice([Process.WEB, Process.WORKER, Process.WORKER])
            running[process].kill()
            running[process].join()
            kills[process] += 1
        time.sleep(0.02)
    eventually(lambda: not undecided(database))
    for one in running.values():
        one.terminate()
        one.join(60)
        assert one.exitcode == 0
    print(f"{kills} kills, {boards} boards, {time.monotonic() - began_s:.0f} s")
    check_one_decision_each(database)
    with database.reading() as connection:
        all_boards = board_rows.newest(connection, limit=ALL)
        assert len(all_boards) == boards
        verdicts = {board.verdict for board in all_boards if not board.late and board.attempts < MAX_ATTEMPTS}
        assert len(verdicts) == 1, "each board has the same two pictures"
        assert {board.verdict for board in all_boards} <= {*verdicts, Verdict.REVIEW}
        assert sum(board.late for board in all_boards) <= boards / 10
    database.close()


WORKS = {Process.WEB: processes.web, Process.WORKER: processes.worker}


def copied_to(database, template):
    """Copy recipes and keys of a new service into another database."""
    with template.reading() as source, database.writing() as connection:
        connection.execute(delete(tables.api_key))
        for table in (tables.recipe, tables.api_key):
            for row in source.execute(select(table)).mappings():
                connection.execute(insert(table).values({name: row[name] for name in row if name != "id"}))
        for recipe in recipe_versions.versions(connection, next(iter(recipe_versions.names(connection)))):
            asked = recipe_versions.ask_activation(connection, recipe.id, by="ann", now_us=now_us())
            recipe_versions.answer(connection, asked.id, ActivationState.ACTIVE, now_us=now_us())
