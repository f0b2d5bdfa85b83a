"""A full disk and a locked database are shown at once, though the fault log lies in that very database."""

import asyncio
import errno
import logging
import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from certificates import Authority
from serving import config_of, csrf, locked, problem, put, serving, signed_in
from tiny_line import TINY
from waiting import eventually

from coe.inspector import weights_used
from coe.serve.clock import DAY_US, HOUR_US, SteadyClock, now_us
from coe.serve.credentials import certificates_of
from coe.serve.database import fault_log, states
from coe.serve.database.connecting import Database, DatabaseError, DatabaseErrorKind, open_database
from coe.serve.database.tables import NewFault
from coe.serve.enums import FaultKind, Process, Role
from coe.serve.gate import gate_state, storage
from coe.serve.gate.server import LONGEST_OFF_US, follow_clock, give_sign, open_gate, remove_old
from coe.serve.gate.storage import DataDisk, OwnFaults
from coe.serve.picture_folder import Pictures, Receiving
from coe.serve.retention import ArchiveFailed

PAGES = ("/", "/verify", "/statistics", "/recipes", "/experts", "/faults")
GIB = 1 << 30
TIGHT, NEARLY = DataDisk(100 * GIB, 2 << 20), DataDisk(100 * GIB, 5 * GIB)
ROOMY, LOW, FULL = DataDisk(100 * GIB, 50 * GIB), DataDisk(100 * GIB, 3 * GIB), DataDisk(100 * GIB, 0)


def disk(monkeypatch, size):
    usage = SimpleNamespace(total=size.total, used=size.total - size.free, free=size.free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)


@contextmanager
def locked_for_readers(served):
    """Give the gate a copy of its database whose file another connection has for itself alone."""
    before = served.gate.database
    before.shorten_log()
    copy = shutil.copy(str(before.url.database), f"{before.url.database}.copy")
    with closing(sqlite3.connect(copy, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        served.gate.database = open_database(f"sqlite:///{copy}", busy_s=0.1)
        try:
            yield
        finally:
            served.gate.database.close()
            served.gate.database = before


@contextmanager
def logged():
    """Give the list of what is logged from now on, at the level WARNING or above."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger().removeHandler(handler)


def look(served):
    asyncio.run(give_sign(served.gate))


def shown(served):
    return [(fault["kind"], fault["about"]) for fault in served.operator.get("/api/v1/faults").json()["faults"]]


def clears(station, monkeypatch):
    """Check that no fault is left once it need not be held."""
    monkeypatch.setattr(storage, "HOLD_S", 0.0)
    look(station)
    assert shown(station) == []
    assert station.nobody.get("/health/ready").status_code == 200


def pages_say(person, word):
    """Check that each page shows what is wrong, and asks again by itself."""
    for path in PAGES:
        page = person.get(path)
        assert (page.status_code, page.headers["content-type"][:9]) == (503, "text/html"), path
        assert word in page.text
        assert page.headers["refresh"] == page.headers["retry-after"]


def metric(served, name):
    samples = [line.split() for line in served.engineer.get("/metrics").text.splitlines() if line[0] != "#"]
    return next(float(value) for found, value in samples if found == name)


def history(database):
    return [(fault.kind, fault.about, fault.cleared_by) for fault in database.read(fault_log.newest)]


def test_a_locked_database_is_shown_everywhere_at_once_and_the_history_has_it_afterwards(station, monkeypatch, capfd):
    assert station.nobody.get("/health/ready").status_code == 200
    with closing(signed_in(station, Role.ENGINEER)) as person, locked(station.gate.database):
        look(station)
        assert shown(station) == [("database", "database")]
        assert station.operator.get("/api/v1/faults?all=1").json()["faults"][0]["kind"] == "database"
        ready = station.nobody.get("/health/ready")
        assert (ready.status_code, ready.json()["type"]) == (503, "urn:coe:problem:not-ready")
        assert metric(station, "coe_faults_open") == 1
        assert "1 open fault" in person.get("/").text
        page = person.get("/faults")
        assert page.status_code == 200
        assert "/api/v1/faults/0/clear" not in page.text
        refused = person.post("/api/v1/drain", headers={"X-CSRF-Token": csrf(page.text)})
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:coe:problem:busy")
    assert "locked" in capfd.readouterr().err
    look(station)  # it answers again; the fault stays for a while, in the history too
    assert history(station.database) == [(FaultKind.DATABASE, "database", "")]
    clears(station, monkeypatch)
    assert history(station.database) == [(FaultKind.DATABASE, "database", "web")]


def test_pages_say_what_is_wrong_when_the_database_cannot_even_be_read(station):
    with closing(signed_in(station, Role.ENGINEER)) as person, locked_for_readers(station):
        pages_say(person, "locked")
        for path in ("/api/v1/faults", "/api/v1/boards/1", "/metrics", "/line/part"):
            answer = person.get(path)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:coe:problem:busy"), path
        problem(station.nobody.get("/health/ready"), 503, "not-ready")
    assert station.operator.get("/").status_code == 200


FAILURES = {
    errno.ENOSPC: (507, "disk-full"),
    errno.EROFS: (503, "disk-failed"),
    errno.EIO: (503, "disk-failed"),
    errno.ESTALE: (503, "disk-failed"),
    errno.EACCES: (503, "disk-failed"),
}


@pytest.mark.parametrize("number", FAILURES)
def test_a_page_for_which_the_disk_has_no_room_or_fails_says_so(station, monkeypatch, number):
    """As that of a service of before without its secret."""

    def refuse(path):
        raise OSError(number, "no room")

    monkeypatch.setattr(gate_state, "read_or_make", refuse)
    monkeypatch.setattr(station.gate, "secret", b"")
    status, kind = FAILURES[number]
    page = station.operator.get("/")
    assert (page.status_code, page.headers["content-type"][:9]) == (status, "text/html")
    answer = station.nobody.post(
        "/api/v1/session", json={"key": "x"}, headers={"Cookie": "coe_session=x", "X-CSRF-Token": "x"}
    )
    problem(answer, status, kind)


@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.parametrize("met_by", ["upload", "look"])
def test_a_disk_that_takes_no_picture_is_shown_until_it_does(station, monkeypatch, number, met_by):
    def refuse(*_):
        raise OSError(number, "no")

    status, kind = FAILURES[number]
    with monkeypatch.context() as failing, logged() as records:
        failing.setattr(Pictures, "prove", refuse)
        failing.setattr(Receiving, "keep", refuse)
        if met_by == "look":
            look(station)
        else:
            problem(put(station.feeder, "k1", "R1"), status, kind)
        # An upload says where it failed; a look, which comes every two seconds, is the fault alone.
        placed = any("(test_serve_storage_faults.py:" in one.getMessage() for one in records)
        assert placed == (met_by == "upload")
        assert not any(one.exc_info for one in records)
        assert shown(station) == [(kind.replace("-", " "), "")]
        assert station.nobody.get("/health/ready").status_code == 503
    clears(station, monkeypatch)
    assert put(station.feeder, "k1", "R1").status_code == 201


def test_a_disk_that_does_not_answer_is_shown_takes_no_picture_and_holds_up_nothing_else(station, monkeypatch):
    answers, keep, reading = threading.Event(), Receiving.keep, Database.reading
    held = []

    def hang(receiving):
        held.append(receiving)
        answers.wait()
        return keep(receiving)

    with monkeypatch.context() as hanging:
        hanging.setattr(Pictures, "prove", lambda self: answers.wait())
        hanging.setattr(Receiving, "keep", hang)
        hanging.setattr(station.gate.files, "answers_s", 0.05)
        with ThreadPoolExecutor(storage.THREADS) as feeders:  # as many as have a thread
            try:
                handed = [feeders.submit(put, station.feeder, f"k{number}", "R1") for number in range(8)]
                eventually(lambda: len(held) == storage.THREADS)
                look(station)
                assert shown(station) == [("disk failed", "")]
                assert station.nobody.get("/health/ready").status_code == 503
                problem(put(station.feeder, "k9", "R1"), 503, "disk-failed")
                problem(station.engineer.get("/teach/x/work"), 503, "disk-failed")
                assert station.engineer.get("/teach").status_code == 503
                hanging.setattr(station.gate, "secret", b"")
                problem(station.nobody.get("/api/v1/faults", headers={"Cookie": "coe_session=x"}), 503, "disk-failed")
                look(station)  # it waits no second time
                hanging.setattr(Database, "reading", lambda self: answers.wait() and reading(self))
                assert station.nobody.get("/health/ready").status_code == 503
            finally:
                answers.set()
        assert {one.result().status_code for one in handed} <= {201, 503}  # some may meet the lock of the database
    clears(station, monkeypatch)
    assert put(station.feeder, "k9", "R1").status_code == 201


@pytest.mark.parametrize("number", [errno.EROFS, None], ids=["refuses", "hangs"])
def test_a_start_onto_a_disk_that_fails_shows_its_fault_and_goes_on_once_it_is_back(
    sqlite_database, tmp_path, monkeypatch, number
):
    answers, prepare = threading.Event(), Pictures.prepare

    def fail(pictures):
        if number is not None and not answers.is_set():
            raise OSError(number, "no")
        answers.wait()
        prepare(pictures)

    monkeypatch.setattr(Pictures, "prepare", fail)
    monkeypatch.setattr(storage, "ANSWERS_S", 0.05)
    try:
        with serving(config_of(tmp_path), sqlite_database) as served:
            with closing(signed_in(served)) as person:
                assert "disk failed" in person.get("/faults").text
            assert served.nobody.get("/health/ready").status_code == 503
            problem(put(served.feeder, "k1", "R1"), 503, "disk-failed")
            answers.set()
            eventually(lambda: look(served) or put(served.feeder, "k1", "R1").status_code == 201)
    finally:
        answers.set()


@pytest.mark.parametrize("reads_hang", [True, False])
def test_a_database_that_does_not_answer_is_shown_by_every_page_at_once_and_comes_back_by_itself(
    station, monkeypatch, reads_hang
):
    answers, reading, writing, held = threading.Event(), Database.reading, Database.writing, list[str]()

    def hang(of, database):
        held.append("one")
        answers.wait()
        return of(database)

    with closing(signed_in(station, Role.ENGINEER)) as person, monkeypatch.context() as hanging:
        token = {"X-CSRF-Token": csrf(person.get("/").text)}
        hanging.setattr(station.gate.queries, "answers_s", 0.05)
        hanging.setattr(storage, "GLANCE_S", 0.01)
        hanging.setattr(Database, "writing", lambda self: hang(writing, self))
        if reads_hang:
            hanging.setattr(Database, "reading", lambda self: hang(reading, self))
        with ThreadPoolExecutor(20) as people:
            try:
                ask = partial(person.get, "/") if reads_hang else partial(person.post, "/api/v1/drain", headers=token)
                waiting = [people.submit(ask) for _ in range(20)]  # more than have a thread
                eventually(lambda: len(held) >= storage.THREADS)
                look(station)
                assert {one.result().status_code for one in waiting} == {503}
                pages_say(person, "does not answer")
                problem(put(station.feeder, "k1", "R1"), 503, "busy")
                problem(station.engineer.get("/metrics"), 503, "busy")
                problem(station.nobody.get("/health/ready"), 503, "not-ready")
                for path in ("/health/live", "/login", "/static/style.css"):
                    assert person.get(path).status_code == 200, path
            finally:
                answers.set()
    monkeypatch.setattr(storage, "HOLD_S", 0.0)
    eventually(lambda: look(station) or station.operator.get("/api/v1/faults").json() == {"faults": []})
    assert station.operator.get("/").status_code == 200
    assert put(station.feeder, "k1", "R1").status_code == 201


@pytest.mark.parametrize(
    ("kind", "told"), [(DatabaseErrorKind.FULL, "report"), (DatabaseErrorKind.BUSY, "locked")], ids=["full", "busy"]
)
def test_long_work_is_waited_for_while_there_is_no_room_and_not_while_the_database_is_locked(monkeypatch, kind, told):
    monkeypatch.setattr(storage, "GLANCE_S", 0.01)

    def refuse():
        raise DatabaseError(kind, "locked")

    async def report():
        with closing(storage.Storage("test", TimeoutError)) as database:
            database.answers_s = 0.05
            with pytest.raises(DatabaseError):
                await database.look(refuse)
            try:
                return await database.do(lambda: time.sleep(0.2) or "report")
            except DatabaseError as error:
                return str(error)

    assert asyncio.run(report()) == told


def test_a_disk_of_experts_that_hangs_holds_up_the_recipes_that_are_checked_alone(station, monkeypatch):
    answers, held = threading.Event(), list[object]()
    monkeypatch.setattr(weights_used, "read_manifests", lambda *of: held.append(of) or (answers.wait() and {}))
    with ThreadPoolExecutor(storage.THREADS) as people:
        post = partial(station.engineer.post, "/api/v1/recipes/tiny", json={"rules": TINY})
        posted = [people.submit(post) for _ in range(storage.THREADS)]
        try:
            eventually(lambda: len(held) == storage.THREADS)
            assert station.operator.get("/api/v1/recipes").status_code == 200
        finally:
            answers.set()
    # On a busy machine some were told meanwhile that the disk does not answer.
    assert {one.result().status_code for one in posted} <= {201, 503}
    assert post().status_code == 201


def test_a_disk_that_fills_is_warned_of_before_and_the_faults_clear_themselves(station, monkeypatch):
    look(station)
    assert shown(station) == []
    assert metric(station, "coe_disk_free_ratio") == 0.5
    disk(monkeypatch, DataDisk(1000 * GIB, 49 * GIB))
    look(station)
    assert "under 5 %" in station.operator.get("/api/v1/faults").text, "5 % are not less than 5 %"
    disk(monkeypatch, LOW)
    look(station)
    disk(monkeypatch, NEARLY)
    look(station)
    assert shown(station) == [("disk low", "")]
    disk(monkeypatch, LOW)
    look(station)
    assert metric(station, "coe_disk_free_ratio") == pytest.approx(0.03)
    assert station.nobody.get("/health/ready").status_code == 200
    disk(monkeypatch, FULL)
    look(station)
    assert sorted(shown(station)) == [("disk full", ""), ("disk low", "")]
    assert station.nobody.get("/health/ready").status_code == 503
    disk(monkeypatch, ROOMY)
    clears(station, monkeypatch)
    assert history(station.database) == [(kind, "", "web") for kind in (FaultKind.DISK_FULL, FaultKind.DISK_LOW)]


def test_a_certificate_is_warned_of_before_its_end_and_again_each_day(station, monkeypatch, tmp_path):
    file, key = Authority(tmp_path, "plant").certificate("ours")  # of two days, the first of which is over
    old, new = (Authority(tmp_path, name, days).path for name, days in (("old", 1), ("new", 50)))
    new.write_bytes(old.read_bytes() + new.read_bytes())  # as while an authority changes its own
    listen = {"certificate": file, "private_key": key}
    broker = {"host": "broker", "tls": {**listen, "ca": old}}
    hook = {"url": "https://mes/", "secret": {"file": key}, "ca": new}
    sinks = {"mqtt": {"cell": broker}, "webhooks": {"mes": hook}, "hosts": ["mes"]}
    config = config_of(tmp_path, listen=listen, sinks={**sinks, "opcua": {**listen, "clients": [new, old]}})
    names = ["listen.certificate", "sinks.mqtt.cell.tls.certificate", "sinks.mqtt.cell.tls.ca"]
    names += ["sinks.opcua.certificate", "sinks.opcua.clients, number 2"]
    station.gate.certificates = list(certificates_of(config.model_dump()))
    assert not list(certificates_of({"mes": {"clients": 5, "ca": "of the system"}})), "as a plug-in may"
    begun_us = now_us()
    for hours, told in {0: 0, 13: 1, 14: 1, 25: 2, 90: 2}.items():
        with monkeypatch.context() as later:
            later.setattr(station.gate, "now_us", lambda hours=hours: begun_us + hours * HOUR_US)
            look(station)
        found = {fault.about: fault.times for fault in station.database.read(fault_log.open_faults)}
        assert found == (dict.fromkeys(names, told) if told else {})
    assert str(file) in station.operator.get("/api/v1/faults").text
    assert station.nobody.get("/health/ready").status_code == 200
    old.write_bytes(file.write_bytes(Authority(tmp_path, "renewed", 50).path.read_bytes()) and new.read_bytes())
    station.gate.certificates = list(certificates_of(config.model_dump()))
    look(station)
    assert not station.database.read(fault_log.open_faults), "after a restart nothing is warned of any more"
    monkeypatch.setattr(station.gate, "now_us", lambda: 0)
    look(station)
    told = {fault.about: fault.message for fault in station.database.read(fault_log.open_faults)}
    assert told.keys() > set(names), "on a box that starts without a clock no certificate has begun"
    assert all("check the clock" in message for message in told.values())


@pytest.mark.parametrize("roomy", [ROOMY, DataDisk(200 << 20, 150 << 20)])
def test_a_database_that_met_a_full_disk_stays_a_fault_until_there_is_room_and_a_while_has_passed(roomy):
    passed = [0.0]
    faults = OwnFaults(lambda: 1, lambda: passed[0])
    faults.database_failed(DatabaseError(DatabaseErrorKind.FULL, "full"))
    assert faults.of_storage() == "full"
    faults.look_at(roomy, 0.05, 256 << 20)
    assert faults.of_storage() == "full"
    passed[0] = storage.HOLD_S
    faults.look_at(TIGHT, 0.0, 0)
    assert faults.of_storage() == "full"
    faults.look_at(roomy, 0.05, 256 << 20)
    assert not faults.of_storage()


def test_a_fault_of_an_earlier_process_is_cleared_when_its_cause_is_gone(station):
    with station.database.writing() as connection:
        for kind in (FaultKind.DISK_LOW, FaultKind.DISK_FULL):
            fault_log.note(connection, NewFault(Process.WEB, kind, "before"), 1)
        fault_log.note(connection, NewFault(Process.WORKER, FaultKind.DISK_FULL, "of the worker"), 1)
    look(station)
    (fault,) = station.database.read(fault_log.open_faults)
    assert fault.process is Process.WORKER


def test_a_busy_box_is_not_called_a_disk_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(storage, "GLANCE_S", 0.05)

    async def looked(is_busy):
        with closing(storage.Storage("test", TimeoutError)) as disk:
            disk.answers_s = 0.3
            look = asyncio.ensure_future(disk.look(lambda: time.sleep(0.5) or "answer"))
            await asyncio.sleep(0.01)
            if is_busy:  # nothing of this process gets its turn
                time.sleep(0.45)
            return await look

    assert (asyncio.run(looked(True)), asyncio.run(looked(False))) == ("answer", None)


@pytest.mark.parametrize("ahead_us", [LONGEST_OFF_US + 1, -LONGEST_OFF_US - DAY_US], ids=["ahead", "behind"])
def test_a_clock_far_off_at_the_start_removes_no_picture_until_somebody_says_so(served, ahead_us):
    put(served.feeder, "k1", "R1")
    config, before_us = served.gate.config, now_us() - ahead_us
    served.database.write(states.beat, Process.WEB, pid=1, now_us=before_us)
    with closing(open_gate(config)) as gate:
        later_us = now_us() + 400 * DAY_US
        assert remove_old(gate, 0, later_us, None) == 0
        asyncio.run(gate.write_faults())
        assert remove_old(gate, 0, later_us, None) == 0
        with gate.database.writing() as connection:
            [fault] = fault_log.open_faults(connection)
            assert (fault.kind, fault.process) == (FaultKind.CLOCK, Process.WEB)
            fault_log.clear(connection, fault.id, by="ann", now_us=now_us())
        assert remove_old(gate, 0, later_us, None) == 1


def test_pictures_go_by_a_clock_that_was_set_far_ahead_once_somebody_says_so(served):
    gate, ahead_us = served.gate, 0
    gate.now_us = lambda: now_us() + ahead_us
    clock = SteadyClock(gate.now_us)
    assert not follow_clock(gate, clock, was_told=False)
    ahead_us = 20_000 * DAY_US
    assert follow_clock(gate, clock, was_told=False)
    asyncio.run(gate.write_faults())
    assert follow_clock(gate, clock, was_told=True)
    with gate.database.writing() as connection:
        [fault] = fault_log.open_faults(connection)
        fault_log.clear(connection, fault.id, by="ann", now_us=now_us())
    assert gate.now_us() - clock.now_us() > LONGEST_OFF_US
    assert not follow_clock(gate, clock, was_told=True)
    assert gate.now_us() - clock.now_us() < DAY_US


def test_files_without_a_row_go_although_the_archive_is_not_there(served):
    put(served.feeder, "k1", "R1")
    gate, later_us = served.gate, now_us() + 400 * DAY_US
    retention = gate.config.retention.model_copy(update={"archive": gate.config.data / "nowhere"})
    gate.config = gate.config.model_copy(update={"retention": retention})
    stray = gate.pictures.folder_of("00") / "stray"
    stray.write_bytes(b"")
    with pytest.raises(ArchiveFailed):
        remove_old(gate, 0, later_us, None)
    assert not stray.exists()
