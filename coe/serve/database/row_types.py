"""Rows as frozen records. A query returns records with names, never rows of the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Label, Result, Row, Table, cast, func, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from coe.serve.database.columns import Stored

_R = TypeVar("_R")
"""A frozen dataclass whose fields are columns of a query."""
_S = TypeVar("_S", bound=Stored)


def get(connection: Connection, kind: type[_S], id: int) -> _S | None:
    """Return the row of an id, or None."""
    return found(kind, connection.execute(kind.of_id, {"of_id": id}))


def only(connection: Connection, kind: type[_S], *which: Any) -> _S | None:
    """Return the only row that fulfils all conditions, or None."""
    return found(kind, connection.execute(select(*kind.columns).where(*which)))


def listed(
    connection: Connection, kind: type[_S], *which: Any, newest: bool = False, limit: int | None = None
) -> list[_S]:
    """Return the rows that fulfil all conditions, the oldest or the newest first."""
    id = kind.table.c.id
    query = select(*kind.columns).where(*which).order_by(id.desc() if newest else id).limit(limit)
    return records(kind, connection.execute(query))


def add(connection: Connection, kind: type[_S], row: Mapping[str, Any]) -> _S:
    """Insert a row, and return it as a record."""
    return record(kind, connection.execute(insert(kind.table).values(row).returning(*kind.columns)).one())


def change(connection: Connection, table: Table, *which: Any, **values: Any) -> bool:
    """Change the rows that fulfil all conditions; return whether there are any."""
    return connection.execute(update(table).where(*which).values(values)).rowcount > 0


def values_of(new: Any) -> dict[str, Any]:
    """Return the fields of a record by their names."""
    return {name: getattr(new, name) for name in new.__dataclass_fields__}


def record(kind: type[_R], row: Row[*tuple[Any, ...]]) -> _R:
    """Return a row as a record whose fields are the row's columns."""
    return kind(**row._mapping)


def found(kind: type[_R], result: Result[Any]) -> _R | None:
    """Return the only row of a result as a record; None if there is none."""
    row = result.one_or_none()
    return None if row is None else record(kind, row)


def shown(row: Any, names: str, **renamed: str) -> dict[str, Any]:
    """Return fields of a record as JSON; `names` has blanks between them, as in `namedtuple`.

    Those of `renamed` have other names in JSON. Enumerations are texts there.
    """
    return {key: getattr(row, name) for key, name in ({name: name for name in names.split()} | renamed).items()}


def records(kind: type[_R], result: Result[Any]) -> list[_R]:
    """Return all rows of a result as records."""
    names = tuple(result.keys())
    # Twice as fast as the mappings that rows have.
    return [kind(**dict(zip(names, row, strict=True))) for row in result]


def add_up(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a table of sums: where a row of the same key is there, its other columns grow."""
    if rows:
        # In one order, so that two writers never wait for each other's rows.
        ordered = sorted(rows, key=lambda row: [row[column.name] for column in table.primary_key])
        connection.execute(_adding_up(table, connection.dialect.name), ordered)


def upserting(dialect: str) -> Any:
    """Return the `insert` of a dialect, which knows what to do with a row that is there already."""
    return (postgresql if dialect == "postgresql" else sqlite).insert


@cache
def _adding_up(table: Table, dialect: str) -> Any:
    key = [column.name for column in table.primary_key]
    statement = upserting(dialect)(table)
    grown = {column.name: column + statement.excluded[column.name] for column in table.c if column.name not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=grown)


def total(number: Any) -> Label[Any]:
    """Return the sum of a column, under its name and of its type: PostgreSQL adds 64-bit integers up to a decimal."""
    return cast(func.sum(number), number.type).label(number.name)


def in_turn(connection: Connection, table: Table) -> None:
    """Let no other transaction append to a table before this one ends, so that its ids grow in the order of commits.

    A reader who remembers the largest id that it saw would otherwise miss a row that got its id early and was committed
    late. SQLite has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"coe.{table.name}"})
