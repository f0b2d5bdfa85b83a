"""Rows and texts that break something: one board is REVIEW, the others go on, and every database takes what is said."""

import pytest
from quick_line import QuickDevice
from serve_rows import NOON, decided, ng, the
from serving import activated, config_of
from sqlalchemy import make_url, text
from sqlalchemy.exc import TimeoutError as NoConnection
from stations import LIGHT, accept, deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually

from coe.core import Verdict
from coe.errors import ConfigError
from coe.helpers.strict_model import of_json
from coe.serve.database import call_rows, fault_log, recipe_versions
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind, open_database, translated
from coe.serve.database.tables import NewCall, NewFault
from coe.serve.enums import CallReason, FaultKind, Process
from coe.serve.recipe_content import RecipeContent

DIRTY = "it said \x00, \x1b[2J and \udcff\nand more"
CLEAN = "it said \\x00, \\x1b[2J and \\xff\nand more"


def test_a_recipe_of_another_version_of_the_service_ends_no_line(tmp_path, sqlite_database, tiny):
    config = config_of(tmp_path)
    old = sqlite_database.write(
        recipe_versions.add, "old", {"rules": TINY, "a key of the past": 1}, by="ann", now_us=NOON
    )
    new = activated(sqlite_database, TINY)
    broken = accept(config, sqlite_database, old.id, {"R1": LIGHT}, key="k1")
    good = accept(config, sqlite_database, new.id, {"R1": LIGHT}, key="k2")
    with deciding(config, sqlite_database, quick_opener(tiny, QuickDevice())):
        eventually(lambda: state_of(sqlite_database, good.id).verdict is Verdict.OK)
    found = state_of(sqlite_database, broken.id)
    assert found.verdict is Verdict.REVIEW
    assert "a key of the past" in found.reason
    (call,) = sqlite_database.read(call_rows.of_board, broken.id)
    assert call.reason is CallReason.FAILED


@pytest.mark.parametrize("refdes", ["", "R" * 201, "R\x001", "R\u202e"])
def test_a_part_has_a_name_that_every_column_holds(refdes):
    with pytest.raises(ConfigError, match="parts"):
        of_json({"rules": TINY, "parts": {refdes: "A"}}, RecipeContent)


@pytest.mark.parametrize("field", ["parts", "feeders"])
@pytest.mark.parametrize("other", ["Gro\u0308\u00dfe", " Gr\u00f6\u00dfe", "Gr\u00f6\u00dfe\t"])
def test_of_two_names_that_are_one_none_is_lost(field, other):
    with pytest.raises(ConfigError, match=field):
        of_json({"rules": TINY, field: {"Gr\u00f6\u00dfe": "A", other: "B"}}, RecipeContent)


def test_every_database_takes_what_an_experts_code_says(database):
    failed = NewCall("R2", "R0402", Verdict.REVIEW, CallReason.FAILED, detail=DIRTY)
    with database.writing() as connection:
        board = decided(connection, "k1", ng(), failed)
        fault = fault_log.note(connection, NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, DIRTY), NOON)
        again = fault_log.note(connection, NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, DIRTY), NOON)
        assert (fault.message, again.message, again.times) == (CLEAN, CLEAN, 2)
        call = call_rows.of_component(connection, board.id, "R2")
        assert call.detail == CLEAN
        raised = NewCall("R2", "R0402", Verdict.NG, CallReason.EXPERT, detail=DIRTY)
        assert call_rows.raise_verdict(connection, call, raised)


# A database that cannot be used is an error that passes, whatever the driver calls it, and does not end the feed


def test_a_damaged_file_is_a_database_that_cannot_be_read(sqlite_database):
    file = the(sqlite_database.url.database)
    sqlite_database.shorten_log()
    sqlite_database.close()
    with open(file, "r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * 40 * 4096)
    database = open_database(str(sqlite_database.url))
    with pytest.raises(DatabaseError, match="malformed") as error, database.reading() as connection:
        connection.execute(text("SELECT * FROM board, event, recipe, view")).all()
    assert error.value.kind is DatabaseErrorKind.LOST
    database.close()


def test_connections_that_all_wait_for_a_database_are_an_error():
    with (
        pytest.raises(DatabaseError, match="all connections are in use") as error,
        translated(make_url("sqlite:///it.db")),
    ):
        raise NoConnection("QueuePool limit of size 16 overflow 10 reached")
    assert error.value.kind is DatabaseErrorKind.LOST


def test_the_feed_goes_on_after_a_time_without_a_free_connection(served, monkeypatch):
    """It would say no event ever after, and clients that wait for a decision would wait in vain."""
    feed, failures = served.gate.feed, 0
    connect = served.database.engine.connect

    def refuse():
        nonlocal failures
        failures += 1
        raise NoConnection("no connection")

    monkeypatch.setattr(served.database.engine, "connect", refuse)
    for _ in range(200_000):
        if failures >= 2:
            break
        feed.hurry()
    assert failures >= 2
    monkeypatch.setattr(served.database.engine, "connect", connect)
    before = feed.last_id
    assert served.engineer.post("/api/v1/drain").status_code == 200
    for _ in range(2000):
        if feed.last_id > before:
            break
        served.operator.get("/health/live")
    assert feed.last_id > before
