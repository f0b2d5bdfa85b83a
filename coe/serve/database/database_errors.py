"""Errors of the database. No other module interprets the errors of a driver."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from sqlalchemy import URL, exc
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from coe.errors import CoeError

NO_ROOM_BYTES = 1 << 20
"""With less than this a disk counts as full, though nobody has failed to write yet."""


class DatabaseErrorKind(StrEnum):
    """Why the database did not do what it was asked."""

    BUSY = "busy"
    """Another program holds its lock; the same question later may succeed."""
    FULL = "full"
    """Its disk is full."""
    LOST = "lost"
    """It cannot be reached, read or written."""


class DatabaseError(CoeError):
    """The database did not do what it was asked; nothing of the transaction was written. `kind` says why."""

    def __init__(self, kind: DatabaseErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


_SENTENCES = {
    DatabaseErrorKind.BUSY: "the database is locked by another program, or its disk hangs; see to them; the service "
    "goes on by itself",
    DatabaseErrorKind.FULL: "the disk of the database is full; make room, and the service goes on by itself",
}
_SQLITE = {
    sqlite3.SQLITE_BUSY: DatabaseErrorKind.BUSY,
    sqlite3.SQLITE_LOCKED: DatabaseErrorKind.BUSY,
    sqlite3.SQLITE_FULL: DatabaseErrorKind.FULL,
}
_POSTGRESQL = {
    "40001": DatabaseErrorKind.BUSY,  # serialization failure
    "40P01": DatabaseErrorKind.BUSY,  # deadlock
    "55P03": DatabaseErrorKind.BUSY,  # lock not available
    "57014": DatabaseErrorKind.BUSY,  # statement timeout
    "53100": DatabaseErrorKind.FULL,
}


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Raise DatabaseError instead of a driver's error if a database cannot be used now.

    Errors of a statement itself, such as a row that already exists (IntegrityError), stay as they are.
    """
    try:
        yield
    except IntegrityError:
        raise
    except NoConnection as error:  # all connections wait for a database that does not answer
        raise _error(url, DatabaseErrorKind.LOST, "all connections are in use") from error
    except DBAPIError as error:
        # A statement's errors are of a class below the driver's DatabaseError; SQLite raises that for a damaged file.
        is_of_database = isinstance(error, OperationalError) or type(error) is exc.DatabaseError
        if not is_of_database and not error.connection_invalidated:
            raise
        raise _error(url, _kind(url, error.orig), error.orig) from error


def _error(url: URL, kind: DatabaseErrorKind, why: object) -> DatabaseError:
    lost = f"the database {url.render_as_string()} cannot be reached or read: {why}"
    return DatabaseError(kind, _SENTENCES.get(kind, lost))


def _kind(url: URL, error: BaseException | None) -> DatabaseErrorKind:
    if isinstance(error, sqlite3.Error):
        # The low byte is the result; the others say more about it.
        result = error.sqlite_errorcode & 0xFF
        if result == sqlite3.SQLITE_IOERR and _is_full(url):  # it says so of the files that it keeps beside it
            return DatabaseErrorKind.FULL
        return _SQLITE.get(result, DatabaseErrorKind.LOST)
    return _POSTGRESQL.get(getattr(error, "sqlstate", None) or "", DatabaseErrorKind.LOST)


def _is_full(url: URL) -> bool:
    try:
        return shutil.disk_usage(Path(url.database or "").parent).free < NO_ROOM_BYTES
    except OSError:
        return False
