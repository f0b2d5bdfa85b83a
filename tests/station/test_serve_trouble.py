"""A locked database, a full disk, a clock that jumps, a broker that is away: nothing is lost, and the service goes on.

Locks, full disks and certificates are real; minutes and hours pass on clocks of the tests.
"""

import shutil
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from bridging import Remembered, append, told, waiting
from full_disk import disk_of
from quick_line import QuickDevice
from serve_rows import NOON, decide, decided, ng
from serving import client_of, embedded_database, hand_in, locked, png, put, say
from sqlalchemy import event
from stations import DARK, LIGHT, deciding, quick_opener, state_of
from waiting import eventually

from coe.core import Verdict
from coe.serve.clock import DAY_US, HOUR_US, SECOND_US, Clocks, SteadyClock, now_us
from coe.serve.database import audit, call_rows, event_log, fault_log, keys
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind, open_database
from coe.serve.enums import EventKind, FaultKind, Role
from coe.serve.gate.access import COOKIE, CSRF_HEADER
from coe.serve.gate.call_routes import CLAIM_S

database = embedded_database(busy_s=0.1)


def all_faults(database):
    return [(fault.kind, fault.cleared_by) for fault in database.read(fault_log.newest)]


# ---- the database is locked for a minute; here for as long as it takes that everybody has met the lock


def test_a_locked_database_loses_nothing_repeats_no_message_and_everybody_goes_on_afterwards(served, tiny):
    impatient = open_database(served.database.url.render_as_string(), busy_s=0.5)
    patient, served.gate.database = served.gate.database, impatient
    device, sink = QuickDevice(), Remembered()
    device.gate.clear()
    with deciding(served.gate.config, impatient, quick_opener(tiny, device)) as station, told(impatient, plant=sink):
        first = hand_in(served.feeder, "k1", {"R1": "C", "R2": "C"}).json()["board"]
        put(served.feeder, "k2", "R1")
        eventually(device.reached.is_set)
        eventually(lambda: "board.started" in [message.name for message in sink.told])
        eventually(lambda: not waiting(impatient, "plant"))
        sink.gate.clear()
        append(impatient, 1)
        with locked(impatient):
            device.gate.set()
            sink.gate.set()
            eventually(lambda: station.waits_for_database)
            body = {"recipe": "tiny", "views": {"R1": {"refdes": "R1", "component": "C"}}}
            refused = served.feeder.post("/api/v1/boards/k2", json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert served.operator.get(f"/api/v1/boards/{first}").json()["verdict"] is None
            eventually(lambda: sink.numbers == [1])
        again = served.feeder.post("/api/v1/boards/k2", json=body)
        assert again.status_code == 202
        eventually(lambda: all(state_of(impatient, id).verdict for id in (first, again.json()["board"])))
        eventually(lambda: [message.name for message in sink.told].count("board.decided") == 2)
    assert sink.numbers == [1]
    assert len({message.id for message in sink.told}) == len(sink.told)
    assert (FaultKind.DATABASE, "worker") in all_faults(impatient)
    impatient.close()
    served.gate.database = patient


@contextmanager
def full(database):
    """Let the database's file have no further page: SQLite itself then finds the disk full."""

    def limit(connection, *_):
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size in its place

    def lift(connection, *_):
        if connection is not None:
            connection.execute("PRAGMA max_page_count = 4294967294")

    # Connections that others hold are not disposed of: nobody would close them.
    event.listen(database.engine, "checkout", limit)
    event.listen(database.engine, "checkin", lift)
    try:
        yield
    finally:
        event.remove(database.engine, "checkout", limit)


def test_a_decision_for_which_the_disk_has_no_room_is_written_once_there_is_room(shop):
    shop.device.gate.clear()
    board = shop.accept({f"R{number}": DARK for number in range(40)})
    with shop.deciding() as station:
        eventually(shop.device.reached.is_set)
        with full(shop.database):
            shop.device.gate.set()
            eventually(lambda: station.waits_for_database)
            assert not shop.is_decided(board)
        eventually(lambda: shop.is_decided(board))
    found = shop.state(board)
    assert (found.verdict, found.calls) == (Verdict.NG, 40)
    assert all_faults(shop.database) == [(FaultKind.DISK_FULL, "worker")]
    assert shop.kinds(board).count(EventKind.BOARD_DECIDED) == 1


def test_a_board_for_which_the_database_has_no_room_is_refused_and_accepted_once_there_is_room(served):
    parts = {f"R{number:0190}": "C" for number in range(15)}
    views = {refdes: {"refdes": refdes, "component": "C"} for refdes in parts}
    for seed, refdes in enumerate(parts):
        assert put(served.feeder, "k1", refdes, png(seed, side=8)).status_code == 201
    with full(served.gate.database):
        refused = served.feeder.post("/api/v1/boards/k1", json={"recipe": "tiny", "views": views})
        assert (refused.status_code, refused.json()["type"]) == (507, "urn:coe:problem:disk-full")
    assert served.feeder.post("/api/v1/boards/k1", json={"recipe": "tiny", "views": views}).status_code == 202


LARGE = png(side=900)
"""About 2.4 MB: larger than the database, so that a limit of files can lie between the two."""
LIMIT = 1_500_000


def test_a_picture_that_does_not_fit_on_the_disk_is_refused_and_leaves_nothing(served):
    with disk_of(LIMIT):
        refused = put(served.feeder, "k1", "v", LARGE)
        assert (refused.status_code, refused.json()["type"]) == (507, "urn:coe:problem:disk-full")
        assert shown(served) == ["disk full"]
        assert put(served.feeder, "k1", "small").status_code == 201
    left = [path for path in served.gate.pictures.folder.rglob("*") if path.is_file()]
    assert len(left) == 1
    assert put(served.feeder, "k1", "v", LARGE).status_code == 201
    assert shown(served) == []


def shown(served):
    return [fault["kind"] for fault in served.operator.get("/api/v1/faults").json()["faults"]]


@pytest.mark.parametrize(("free", "kind"), [(0, DatabaseErrorKind.FULL), (1 << 30, DatabaseErrorKind.LOST)])
def test_a_database_that_is_opened_on_a_full_disk_says_so(tmp_path, sqlite_template, monkeypatch, free, kind):
    """It has no room for the files beside it: SQLite calls that an error of the disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    database = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'serve.db')}")
    with disk_of(0), pytest.raises(DatabaseError) as error, database.reading() as connection:
        keys.any_valid(connection, now_us())
    database.close()
    assert error.value.kind is kind


def test_an_export_that_does_not_fit_on_the_disk_leaves_nothing(served):
    put(served.feeder, "k1", "R1", LARGE)
    body = {"recipe": "tiny", "views": {"R1": {"refdes": "R1", "component": "A"}}}
    served.feeder.post("/api/v1/boards/k1", json=body)
    decide(served.database, "k1", ng("R1", view_id=1))
    assert say(served.operator, 1, "confirmed").is_success
    folder = served.gate.config.data / "exports"
    with disk_of(LIMIT):
        refused = served.engineer.post("/api/v1/exports", json={"good": 0})
        assert (refused.status_code, refused.json()["type"]) == (507, "urn:coe:problem:disk-full")
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert served.engineer.post("/api/v1/exports", json={"good": 0}).json()["counts"] == {"body": {"cracked": 1}}


def test_a_board_file_that_is_there_is_not_written_again_so_that_a_full_disk_keeps_no_recipe_away(shop):
    file, written = shop.config.data / "recipes" / f"{shop.recipe.id}.yaml", set()
    for number in range(2):
        shop.decide(shop.accept({"R1": LIGHT}, key=f"k{number}"))
        written.add(file.stat().st_ino)
    assert len(written) == 1


class Wall:
    """A wall clock that a test sets forward and back."""

    def __init__(self):
        self.ahead_us = 0

    def __call__(self):
        return now_us() + self.ahead_us


JUMPS_H = (5, -9, 30, 0)


def test_a_clock_that_jumps_to_and_fro_breaks_no_order_and_no_count(served, tiny):
    wall = Wall()
    served.gate.now_us = wall
    ids = []
    with deciding(served.gate.config, served.database, quick_opener(tiny, QuickDevice()), Clocks(now_us=wall)):
        for number, hours in enumerate(JUMPS_H):
            wall.ahead_us = hours * HOUR_US
            answer = hand_in(served.feeder, f"k{number}", {"R1": "C", "R2": "C"}, within_s=60)
            ids.append(answer.json()["board"])
            eventually(lambda: state_of(served.database, ids[-1]).verdict is not None)
            assert served.engineer.post("/api/v1/drain").is_success
            assert served.engineer.post("/api/v1/resume").is_success
        eventually(lambda: [kind for kind, _ in all_faults(served.database)] == [FaultKind.CLOCK])
    found = [state_of(served.database, id) for id in ids]
    assert [(board.verdict, board.late) for board in found] == [(Verdict.OK, False)] * len(JUMPS_H)
    with served.database.reading() as connection:
        happened = event_log.after(connection, 0)
        assert [one.id for one in happened] == sorted(one.id for one in happened)
        assert [one.happened_us for one in happened] != sorted(one.happened_us for one in happened)
        assert audit.prove(connection).broken_id is None


def test_a_board_has_no_more_time_when_the_clock_is_set_back_and_is_no_pass_when_it_is_set_forward(shop):
    """The clock jumps while the line is down: forward makes the board late, back gives it no more time."""
    for hours, late in ((5, True), (-5, False)):
        wall, passed, shop.device = Wall(), [0.0], QuickDevice()
        board = shop.accept({"R1": LIGHT}, key=f"k{hours}", within_s=60)
        wall.ahead_us = hours * HOUR_US
        shop.device.gate.clear()
        with shop.deciding(Clocks(wall, partial(passed.__getitem__, 0))):
            if not late:
                eventually(shop.device.reached.is_set)
                passed[0] = 61.0
            eventually(lambda board=board: shop.is_decided(board))
            shop.device.gate.set()
        assert (shop.verdict(board), shop.state(board).late) == (Verdict.REVIEW, True)


def test_no_picture_goes_because_the_clock_was_set_forward():
    wall_us, passed_s = NOON, 50.0
    clock = SteadyClock(lambda: wall_us, lambda: passed_s)
    passed_s = 60.0
    wall_us = NOON + 10 * SECOND_US
    assert clock.now_us() == NOON + 10 * SECOND_US
    wall_us += 400 * DAY_US
    assert clock.now_us() == NOON + 10 * SECOND_US
    wall_us = NOON - 5 * HOUR_US
    assert clock.now_us() == NOON - 5 * HOUR_US
    wall_us = NOON + 20 * SECOND_US
    passed_s = 70.0
    assert clock.now_us() == NOON + 20 * SECOND_US


def test_keys_and_sessions_follow_the_clock_and_none_lasts_longer_because_it_was_set_back(served):
    wall = Wall()
    served.gate.now_us = wall
    held = {name: keys.generate() for name in ("short", "revoked")}
    with served.database.writing() as connection:
        for name, key in held.items():
            keys.add(connection, name, Role.OPERATOR, key, now_us=now_us(), expires_us=now_us() + 3 * HOUR_US)
        keys.revoke(connection, "revoked", now_us())

    def status(**headers):
        return served.nobody.get("/api/v1/calls", headers=headers).status_code

    with client_of(served.address) as person:
        person.post("/api/v1/session", json={"key": held["short"]}, headers={CSRF_HEADER: "x"})
        cookie = f"{COOKIE}={person.cookies[COOKIE]}"
    by_key = []
    by_session = []
    for hours in (0.0, 5.0, -0.01, -5.0, 0.0):
        wall.ahead_us = round(hours * HOUR_US)
        by_key.append(status(Authorization=f"Bearer {held['short']}"))
        by_session.append(status(Cookie=cookie))
        assert status(Authorization=f"Bearer {held['revoked']}") == 401
    assert by_key == [200, 401, 200, 200, 200]
    assert by_session == [200, 401, 200, 401, 200]


def test_a_call_that_was_reserved_before_the_clock_was_set_back_is_free(sqlite_database):
    with sqlite_database.writing() as connection:
        decided(connection, "k1", ng())
        until_us = NOON + CLAIM_S * SECOND_US
        assert call_rows.claim_next(connection, by="ann", now_us=NOON, until_us=until_us)
        assert call_rows.claim_next(connection, by="bea", now_us=NOON - 60 * SECOND_US, until_us=until_us) is None
        earlier_us = NOON - 5 * HOUR_US
        taken = call_rows.claim_next(connection, by="bea", now_us=earlier_us, until_us=earlier_us + CLAIM_S * SECOND_US)
    assert taken.claimed_by == "bea"
