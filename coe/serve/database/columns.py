"""How a record declares the table whose row it is: each field is a column, with its name and its type.

What else holds of a column stands in `Annotated`: another type, what it refers to, a key or an index, and a comment.
What is no simple value is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum as PlainEnum
from enum import StrEnum, auto
from types import NoneType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from sqlalchemy import JSON, BigInteger, Boolean, Column, Enum, Float, ForeignKey, Integer, Select, String, Table, Text
from sqlalchemy.types import TypeEngine

NAME = 200
"""The most characters of a name that somebody gives: a serial, a refdes, a key's name."""
WHOLE = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only keys of its own integer type, which has 64 bits."""
_TYPES: Mapping[Any, type[TypeEngine[Any]]] = {str: Text, bool: Boolean, int: Integer, float: Float}


class Is(PlainEnum):
    """What may hold of a column."""

    KEY = auto()
    """It is the primary key, or a part of it."""
    UNIQUE = auto()
    INDEXED = auto()


@dataclass(frozen=True, slots=True)
class Refers:
    """The column holds the id of a row of this table."""

    table: str


Id = Annotated[int, WHOLE, Is.KEY]
Moment = Annotated[int, BigInteger()]
"""UTC microseconds; the name of the field ends in `_us`."""
Large = Annotated[int, BigInteger()]
NameText = Annotated[str, String(NAME)]
Sha256 = Annotated[str, String(64)]
"""64 characters, as a hash in hexadecimal has."""


class Stored:
    """A frozen dataclass that is the row of a table, which may have further columns, as large values.

    `of_id` is the query of the row of an id, which is built once: to build it takes longer than to run it.
    """

    __slots__ = ()
    table: ClassVar[Table]
    columns: ClassVar[Sequence[Column[Any]]]
    of_id: ClassVar[Select[Any]]


def word(enumeration: type[StrEnum]) -> Enum:
    """Return the type of a column with the words of an enumeration; a new word needs no migration."""
    return Enum(
        enumeration,
        values_callable=lambda members: [member.value for member in members],
        native_enum=False,
        length=40,
        create_constraint=False,
    )


def columns_of(kind: type[Any]) -> list[Column[Any]]:
    """Return the columns that a record declares, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    return [_column(one.name, hints[one.name], one.default) for one in fields(kind)]


def _column(name: str, hint: Any, default: Any) -> Column[Any]:
    said: list[Any] = []
    is_nullable = False
    while (is_annotated := get_origin(hint) is Annotated) or NoneType in get_args(hint):
        if is_annotated:
            hint, *more = get_args(hint)
            said += more
        else:
            is_nullable, (hint,) = True, [one for one in get_args(hint) if one is not NoneType]
    refers = [ForeignKey(f"{one.table}.id") for one in said if isinstance(one, Refers)]
    kind = next((one for one in said if isinstance(one, TypeEngine)), WHOLE if refers else None)
    if kind is None:
        is_word = isinstance(hint, type) and issubclass(hint, StrEnum)
        kind = word(hint) if is_word else _TYPES.get(hint, JSON)()
    return Column(
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
