"""Trouble with the database. Law: no other module interprets the errors of a driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from sqlalchemy.exc import DatabaseError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from coe.errors import CoeError


class TroubleKind(StrEnum):
    """Why the database did not do what it was asked."""

    BUSY = "busy"
    """Another program holds its lock; the same question later may succeed."""
    FULL = "full"
    """Its disk is full."""
    LOST = "lost"
    """It cannot be reached, read or written."""


class DatabaseTrouble(CoeError):
    """The database did not do what it was asked; nothing of the transaction was written. `kind` says why."""

    def __init__(self, kind: TroubleKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


_SENTENCES = {
    TroubleKind.BUSY: "the database is locked by another program; end that program, or try again later",
    TroubleKind.FULL: "the disk of the database is full; make room, and the service goes on by itself",
    TroubleKind.LOST: "the database cannot be reached or read",
}
_SQLITE = {
    sqlite3.SQLITE_BUSY: TroubleKind.BUSY,
    sqlite3.SQLITE_LOCKED: TroubleKind.BUSY,
    sqlite3.SQLITE_FULL: TroubleKind.FULL,
}
_POSTGRESQL = {
    "40001": TroubleKind.BUSY,  # serialization failure
    "40P01": TroubleKind.BUSY,  # deadlock
    "55P03": TroubleKind.BUSY,  # lock not available
    "57014": TroubleKind.BUSY,  # statement timeout
    "53100": TroubleKind.FULL,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise DatabaseTrouble instead of a driver's error if the database cannot be used now.

    Errors of a statement itself, such as a row that already exists (IntegrityError), stay as they are.
    """
    try:
        yield
    except IntegrityError:
        raise
    except NoConnection as error:  # all connections wait for a database that does not answer
        raise DatabaseTrouble(
            TroubleKind.LOST, f"{_SENTENCES[TroubleKind.LOST]}: all connections are in use"
        ) from error
    except DBAPIError as error:
        # Errors of a statement are of a class below DatabaseError; SQLite raises that itself for a damaged file.
        is_of_database = isinstance(error, OperationalError) or type(error) is DatabaseError
        if not is_of_database and not error.connection_invalidated:
            raise
        kind = _kind(error.orig)
        about = f": {error.orig}" if kind is TroubleKind.LOST else ""
        raise DatabaseTrouble(kind, f"{_SENTENCES[kind]}{about}") from error


def _kind(error: BaseException | None) -> TroubleKind:
    if isinstance(error, sqlite3.Error):
        # The low byte is the result; the others say more about it.
        return _SQLITE.get(error.sqlite_errorcode & 0xFF, TroubleKind.LOST)
    return _POSTGRESQL.get(getattr(error, "sqlstate", None) or "", TroubleKind.LOST)
