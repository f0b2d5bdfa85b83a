"""A database that cannot be used is an error that passes, whatever the driver calls it, and does not end the feed."""

from __future__ import annotations

import pytest
from serve_rows import the
from serving import Served
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as NoConnection

from coe.serve.database.connecting import Database, open_database
from coe.serve.database.database_errors import DatabaseError, DatabaseErrorKind, translated


def test_a_damaged_file_is_a_database_that_cannot_be_read(sqlite_database: Database) -> None:
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


def test_connections_that_all_wait_for_a_database_are_an_error() -> None:
    with pytest.raises(DatabaseError, match="all connections are in use") as error, translated("it"):
        raise NoConnection("QueuePool limit of size 16 overflow 10 reached")
    assert error.value.kind is DatabaseErrorKind.LOST


def test_the_feed_goes_on_after_a_time_without_a_free_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say no event ever after, and clients that wait for a decision would wait in vain."""
    feed, failures = served.gate.feed, 0
    connect = served.database.engine.connect

    def refuse() -> object:
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
        served.operator.get("/v2/health/live")
    assert feed.last_id > before
