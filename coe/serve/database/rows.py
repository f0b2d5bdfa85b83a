"""Rows as frozen records. Law: a query returns records with names, never rows of the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Row, Table, text

_R = TypeVar("_R")


def record(kind: type[_R], row: Row[*tuple[Any, ...]]) -> _R:
    """Return a row as a record whose fields are the row's columns."""
    return kind(**row._mapping)


def records(kind: type[_R], rows: Iterable[Row[*tuple[Any, ...]]]) -> list[_R]:
    """Return rows as records."""
    return [record(kind, row) for row in rows]


def columns(table: Table, *without: str) -> list[Column[Any]]:
    """Return the columns of a table but those of some names, as large values that a list does not need."""
    return [column for column in table.c if column.name not in without]


def in_turn(connection: Connection, table: Table) -> None:
    """Let no other transaction append to a table before this one ends, so that its ids grow in the order of commits.

    A reader who remembers the largest id that it saw would otherwise miss a row that got its id early and was committed
    late. SQLite has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"coe.{table.name}"})
