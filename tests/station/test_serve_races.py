"""Two at the same moment: pictures that come, boards that are accepted, and retention, on both databases."""

import asyncio
import os
import threading

import pytest
from serve_rows import NOON, decided, ng
from serving import activated, config_of, hand_in, png, put, serving
from tiny_line import TINY

from coe.helpers import system
from coe.serve import failpoints, retention
from coe.serve.clock import DAY_US, SECOND_US, now_us
from coe.serve.database import audit, board_rows, call_rows, event_log, row_types, verifications, views
from coe.serve.database.connecting import open_database
from coe.serve.database.tables import Board, NewVerification, NewView
from coe.serve.enums import BoardState, Outcome
from coe.serve.failpoints import Failpoint
from coe.serve.gate import recipe_routes, server
from coe.serve.gate.problems import disk_failed
from coe.serve.picture_folder import Pictures
from coe.serve.retention import sweep
from coe.serve.service_config import Retention


@pytest.fixture
def gate(tmp_path, database):
    """A gate over each kind of database, with the tiny board's recipe."""
    activated(database, TINY)
    url = database.url.render_as_string(hide_password=False)
    with serving(config_of(tmp_path, database=url), database) as running:
        yield running


def at_the_same_time(monkeypatch, work):
    """Begin work inside the transaction that accepts a board, once it was found in order; return what it returned."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))

    def hook(point):
        if point is Failpoint.BOARD_CHECKED:
            thread.start()
            thread.join(0.5)  # it may have to wait for this transaction

    def ended():
        thread.join()
        return results[0]

    monkeypatch.setattr(failpoints, "hook", hook)
    return ended


def view_of(database, key="k"):
    (view,) = database.read(views.of_board, key)
    return view


def test_a_picture_is_not_replaced_while_its_board_is_accepted(gate, monkeypatch):
    ended = at_the_same_time(monkeypatch, lambda: put(gate.feeder, "k", "R1", png(9)).status_code)
    assert hand_in(gate.feeder, "k", {"R1": "A"}).status_code == 202
    assert ended() == 409
    assert gate.gate.pictures.path(view_of(gate.database).file).read_bytes() == png(0)


def test_a_picture_is_not_removed_while_its_board_is_accepted(gate, monkeypatch):
    later_us = now_us() + 2 * DAY_US
    ended = at_the_same_time(
        monkeypatch, lambda: sweep(gate.database, gate.gate.pictures, Retention(orphan_days=1), later_us)
    )
    assert hand_in(gate.feeder, "k", {"R1": "A"}).status_code == 202
    assert ended() == 0
    assert gate.gate.pictures.path(view_of(gate.database).file).exists()


def test_a_picture_that_is_still_needed_keeps_no_other(tmp_path, sqlite_database, monkeypatch):
    monkeypatch.setattr(retention, "TOGETHER", 1)
    pictures = Pictures(tmp_path / "pictures")
    pictures.prepare()
    with sqlite_database.writing() as connection:
        for number in range(3):
            file = pictures.receive()
            file.write(png(number))
            kept = file.keep()
            new = NewView(f"k{number}", "v", kept, file.sha256, file.size_bytes, 1600, now_us())
            views.add(connection, new)
            board = decided(connection, f"k{number}", ng())
            if number:
                (call,) = call_rows.of_board(connection, board.id)
                verifications.record_verification(connection, call, NewVerification(Outcome.CONFIRMED, now_us(), "op"))
        oldest = views.of_board(connection, "k0")[0]
    assert sweep(sqlite_database, pictures, Retention(), now_us() + 1000 * DAY_US) == 2
    assert pictures.path(oldest.file).exists()


def test_pictures_that_nobody_removes_cost_no_lock(tmp_path, sqlite_database):
    pictures = Pictures(tmp_path / "pictures")
    impatient = open_database(sqlite_database.url.render_as_string(), busy_s=0.01)
    with sqlite_database.writing() as connection:
        board_rows.undecided(connection)
        assert sweep(impatient, pictures, Retention(), now_us()) == 0
    impatient.close()


def test_two_people_who_answer_the_last_two_calls_at_a_time_verify_the_board(database):
    with database.writing() as connection:
        board = decided(connection, "k1", ng(), ng("R8"))
        defect, other_call = call_rows.of_board(connection, board.id)

    def answer_defect():
        database.write(verifications.record_verification, defect, NewVerification(Outcome.CONFIRMED, NOON, "ann"))

    other = threading.Thread(target=answer_defect)
    with database.writing() as connection:
        verifications.record_verification(connection, other_call, NewVerification(Outcome.FALSE_CALL, NOON, "bob"))
        other.start()
        other.join(0.5)  # it has to wait for this transaction
    other.join()
    found = database.read(row_types.get, Board, board.id)
    assert found.state is BoardState.VERIFIED


def test_locks_of_events_come_before_that_of_the_audit(served, monkeypatch):
    """With the other order two requests of a PostgreSQL service would wait for each other."""
    taken = []
    for module in (audit, event_log):
        monkeypatch.setattr(module, "in_turn", lambda _, table: taken.append(table.name))
    monkeypatch.setattr(recipe_routes, "check", lambda *_: ())
    content = {**served.engineer.get("/api/v1/recipes/tiny/1").json()["content"], "within_s": 7}
    assert served.engineer.post("/api/v1/recipes/tiny", json=content).status_code == 201
    assert served.engineer.post("/api/v1/drain").status_code == 200
    assert served.operator.post("/api/v1/escapes", json={"serial": "S"}).status_code == 201
    assert taken == ["event", "audit"] * 3


def test_a_picture_that_may_get_its_row_is_no_stray(served):
    """The gate before, which was told to end, may have put it on the disk a moment ago."""
    pictures = served.gate.pictures
    files = []
    for age_s in (0, 2 * retention.STRAY_US / SECOND_US):
        receiving = pictures.receive()
        receiving.write(png())
        files.append(pictures.path(receiving.keep()))
        moment_s = files[-1].stat().st_mtime - age_s
        os.utime(files[-1], (moment_s, moment_s))
    for file in files:
        retention.remove_strays(served.database, pictures, int(file.parent.name, 16), now_us())
    assert [file.exists() for file in files] == [True, False]


def test_no_picture_is_kept_before_the_name_of_its_folder_is_on_the_disk(tmp_path, monkeypatch):
    pictures, written, go_on = Pictures(tmp_path / "pictures"), threading.Event(), threading.Event()
    pictures.prepare()
    saved = []
    kept = []

    def save_names(folder):
        if folder == pictures.folder:
            written.set()
            assert go_on.wait(60)
        saved.append(folder)

    def keep():
        receiving = pictures.receive()
        receiving.write(png())
        kept.append(receiving.keep())

    monkeypatch.setattr(system, "save_names", save_names)
    names = iter(("ab1", "ab2"))
    monkeypatch.setattr("secrets.token_hex", lambda size: next(names))
    both = [threading.Thread(target=keep) for _ in range(2)]
    both[0].start()
    assert written.wait(60)
    both[1].start()
    both[1].join(0.2)
    assert kept == []
    go_on.set()
    for one in both:
        one.join(60)
    assert sorted(kept) == ["ab/ab1", "ab/ab2"]
    assert saved == [pictures.folder, *[pictures.folder / "ab"] * 2]


def test_a_bug_in_a_sign_of_life_ends_none_of_those_after_it(served, monkeypatch):
    tries = []

    async def fail(gate):
        tries.append(gate)
        raise ValueError("a bug")

    async def beat():
        beating = asyncio.create_task(server._beat(served.gate))
        while len(tries) < 2:
            assert not beating.done()
            await asyncio.sleep(0.01)
        beating.cancel()

    monkeypatch.setattr(server, "BEAT_S", 0.01)
    monkeypatch.setattr(server, "give_sign", fail)
    asyncio.run(beat())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied"), ["retention"]),
        (ValueError("a bug"), ["retention"]),
        (disk_failed("does not answer"), []),  # it has a fault of its own, which ends with it
    ],
)
def test_pictures_that_cannot_be_removed_are_told_until_they_can(served, monkeypatch, error, told):
    tries = []

    def removes(*_, **__):
        tries.append([fault["kind"] for fault in served.operator.get("/api/v1/faults").json()["faults"]])
        if len(tries) == 1:
            raise error
        return len(tries) - 2

    async def tidy():
        tidying = asyncio.create_task(server._tidy(served.gate))
        while len(tries) < 4:
            assert not tidying.done()
            await asyncio.sleep(0.01)
        tidying.cancel()

    monkeypatch.setattr(server, "TIDY_S", 0.01)
    monkeypatch.setattr(server, "sweep", removes)
    asyncio.run(tidy())
    assert tries[:4] == [[], told, told, []]
