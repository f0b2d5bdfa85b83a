"""Rows as frozen records. A query returns records with names, never rows of the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum as PlainEnum
from enum import StrEnum, auto
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

NAME = 200  # the most characters of a name that somebody gives: a serial, a refdes, a key's name
WHOLE = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up only keys of its own integer type
_TYPES: Mapping[Any, type[TypeEngine[Any]]] = {str: sa.Text, bool: sa.Boolean, int: sa.Integer, float: sa.Float}


class Is(PlainEnum):
    """What may hold of a column."""

    KEY = auto()  # it is the primary key, or a part of it
    UNIQUE = auto()
    INDEXED = auto()


@dataclass(frozen=True, slots=True)
class Refers:
    """The column holds the id of a row of this table."""

    table: str


Id = Annotated[int, WHOLE, Is.KEY]
Moment = Annotated[int, sa.BigInteger()]  # UTC microseconds; the name of the field ends in `_us`
Large = Annotated[int, sa.BigInteger()]
NameText = Annotated[str, sa.String(NAME)]
Sha256 = Annotated[str, sa.String(64)]  # 64 characters, as a hash in hexadecimal has


class Stored:
    """A frozen dataclass that is the row of a table, which may have further columns, as large values.

    `of_id` is the query of the row of an id, which is built once: to build it takes longer than to run it.
    """

    __slots__ = ()
    table: ClassVar[sa.Table]
    columns: ClassVar[Sequence[sa.Column[Any]]]
    of_id: ClassVar[sa.Select[Any]]


def word(enumeration: type[StrEnum]) -> sa.Enum:
    """Return the type of a column with the words of an enumeration; a new word needs no migration."""
    return sa.Enum(
        enumeration,
        values_callable=lambda members: [member.value for member in members],
        native_enum=False,
        length=40,
        create_constraint=False,
    )


def columns_of(kind: type[Any]) -> list[sa.Column[Any]]:
    """Return the columns that a record declares, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    return [_column(one.name, hints[one.name], one.default) for one in fields(kind)]


def _column(name: str, hint: Any, default: Any) -> sa.Column[Any]:
    said: list[Any] = []
    is_nullable = False
    while (is_annotated := get_origin(hint) is Annotated) or NoneType in get_args(hint):
        if is_annotated:
            hint, *more = get_args(hint)
            said += more
        else:
            is_nullable, (hint,) = True, [one for one in get_args(hint) if one is not NoneType]
    refers = [sa.ForeignKey(f"{one.table}.id") for one in said if isinstance(one, Refers)]
    kind = next((one for one in said if isinstance(one, TypeEngine)), WHOLE if refers else None)
    if kind is None:
        is_word = isinstance(hint, type) and issubclass(hint, StrEnum)
        kind = word(hint) if is_word else _TYPES.get(hint, sa.JSON)()
    return sa.Column(
        name,
        kind,
        *refers,
        primary_key=Is.KEY in said,
        nullable=is_nullable or hint is Any,
        unique=Is.UNIQUE in said or None,
        index=Is.INDEXED in said or None,
        default=None if default in (MISSING, ()) else default,
        comment=next((one for one in said if isinstance(one, str)), None),
    )


_R = TypeVar("_R")  # a frozen dataclass whose fields are columns of a query
_S = TypeVar("_S", bound=Stored)


def get(connection: sa.Connection, kind: type[_S], id: int) -> _S | None:
    """Return the row of an id, or None."""
    return found(kind, connection.execute(kind.of_id, {"of_id": id}))


def only(connection: sa.Connection, kind: type[_S], *which: Any) -> _S | None:
    """Return the only row that fulfils all conditions, or None."""
    return found(kind, connection.execute(sa.select(*kind.columns).where(*which)))


def listed(
    connection: sa.Connection, kind: type[_S], *which: Any, newest: bool = False, limit: int | None = None
) -> list[_S]:
    """Return the rows that fulfil all conditions, the oldest or the newest first."""
    id = kind.table.c.id
    query = sa.select(*kind.columns).where(*which).order_by(id.desc() if newest else id).limit(limit)
    return records(kind, connection.execute(query))


def add(connection: sa.Connection, kind: type[_S], row: Mapping[str, Any]) -> _S:
    """Insert a row, and return it as a record."""
    return record(kind, connection.execute(sa.insert(kind.table).values(row).returning(*kind.columns)).one())


def change(connection: sa.Connection, table: sa.Table, *which: Any, **values: Any) -> bool:
    """Change the rows that fulfil all conditions; return whether there are any."""
    return connection.execute(sa.update(table).where(*which).values(values)).rowcount > 0


def values_of(new: Any) -> dict[str, Any]:
    """Return the fields of a record by their names."""
    return {name: getattr(new, name) for name in new.__dataclass_fields__}


def record(kind: type[_R], row: sa.Row[*tuple[Any, ...]]) -> _R:
    """Return a row as a record whose fields are the row's columns."""
    return kind(**row._mapping)


def found(kind: type[_R], result: sa.Result[Any]) -> _R | None:
    """Return the only row of a result as a record; None if there is none."""
    row = result.one_or_none()
    return None if row is None else record(kind, row)


def shown(row: Any, names: str, **renamed: str) -> dict[str, Any]:
    """Return fields of a record as JSON: `names` as in `namedtuple`, and those of `renamed` under other names."""
    return {key: getattr(row, name) for key, name in ({name: name for name in names.split()} | renamed).items()}


def records(kind: type[_R], result: sa.Result[Any]) -> list[_R]:
    """Return all rows of a result as records."""
    names = tuple(result.keys())
    # Twice as fast as the mappings that rows have.
    return [kind(**dict(zip(names, row, strict=True))) for row in result]


def upserting(dialect: str) -> Any:
    """Return the `insert` of a dialect, which knows what to do with a row that is there already."""
    return (postgresql if dialect == "postgresql" else sqlite).insert


def in_turn(connection: sa.Connection, table: sa.Table) -> None:
    """Let no other transaction append to a table before this one ends, so that its ids grow in the order of commits.

    A reader who remembers the largest id that it saw would otherwise miss a row that got its id early and was committed
    late. SQLite has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"coe.{table.name}"})
