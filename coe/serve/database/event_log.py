"""Events, for other machines and for pages. An event is appended in the transaction that makes it true."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, bindparam, func, insert, literal, select

from coe.serve.database.row_types import in_turn, record, records
from coe.serve.database.tables import Event, event, outbox, sink
from coe.serve.enums import EventKind

# Built once: to build them takes longer than to run them.
_APPEND = insert(event).returning(event)
_AFTER = select(event).where(event.c.id > bindparam("after_id")).order_by(event.c.id).limit(bindparam("at_most"))
_TOLD = (bindparam("told_id", type_=Integer), bindparam("told_us", type_=BigInteger), literal(0), literal(""))
_TELL_SINKS = insert(outbox).from_select(
    ["sink", "event_id", "next_try_us", "attempts", "error"], select(sink.c.name, *_TOLD)
)


def append(
    connection: Connection,
    kind: EventKind,
    happened_us: int,
    body: Mapping[str, Any] | None = None,
    board_id: int | None = None,
) -> Event:
    """Append an event, whose body is JSON, and a row of the outbox for each registered sink, in this transaction."""
    in_turn(connection, event)
    row = {"kind": kind, "board_id": board_id, "happened_us": happened_us, "body": dict(body or {})}
    appended = record(Event, connection.execute(_APPEND, row | {"uuid": str(uuid.uuid4())}).one())
    connection.execute(_TELL_SINKS, {"told_id": appended.id, "told_us": happened_us})
    return appended


def after(connection: Connection, id: int, *, limit: int = 500, board_id: int | None = None) -> list[Event]:
    """Return the events after the event of an id, the oldest first; with `board_id` those of one board."""
    bounds = {"after_id": id, "at_most": limit}
    if board_id is not None:
        return records(Event, connection.execute(_AFTER.where(event.c.board_id == board_id), bounds))
    return records(Event, connection.execute(_AFTER, bounds))


def newest_id(connection: Connection) -> int:
    """Return the id of the newest event; 0 if there is none."""
    return connection.scalar(select(func.coalesce(func.max(event.c.id), 0))) or 0
