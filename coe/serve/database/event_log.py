"""Events, for other machines and for pages. An event is appended in the transaction that makes it true."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, bindparam, delete, func, insert, literal, select

from coe.helpers.visible import visible
from coe.serve.database.row_types import change, in_turn, record, records
from coe.serve.database.tables import Event, event, outbox, sink
from coe.serve.database.tables import outbox as waiting_events
from coe.serve.database.tables import sink as sinks
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


# Events that sinks have not been told yet. A row is removed only after its sink has acknowledged the event.


def register_sinks(connection: Connection, names: Collection[str], now_us: int) -> None:
    """Make these the sinks: a new sink gets events from now on; events for a sink that was removed are dropped."""
    before = set(connection.scalars(select(sinks.c.name)))
    if gone := before - set(names):
        connection.execute(delete(waiting_events).where(waiting_events.c.sink.in_(gone)))
        connection.execute(delete(sinks).where(sinks.c.name.in_(gone)))
    if new := sorted(set(names) - before):
        connection.execute(insert(sinks), [{"name": name, "added_us": now_us} for name in new])


def waiting(connection: Connection, sink: str, *, limit: int = 100) -> list[Event]:
    """Return the events that a sink has not been told, the oldest first."""
    query = (
        select(event)
        .join(waiting_events, waiting_events.c.event_id == event.c.id)
        .where(waiting_events.c.sink == sink)
        .order_by(event.c.id)
        .limit(limit)
    )
    return records(Event, connection.execute(query))


def delivered(connection: Connection, sink: str, event_ids: Collection[int]) -> None:
    """Note that a sink has acknowledged events."""
    connection.execute(
        delete(waiting_events).where(waiting_events.c.sink == sink, waiting_events.c.event_id.in_(event_ids))
    )


def failed(connection: Connection, sink: str, event_id: int, *, error: str) -> None:
    """Note that a sink could not be told an event."""
    is_it = (waiting_events.c.sink == sink, waiting_events.c.event_id == event_id)
    error = visible(error, lines=True)
    change(connection, waiting_events, *is_it, attempts=waiting_events.c.attempts + 1, error=error)


@dataclass(frozen=True, slots=True)
class SinkQueue:
    """How many events wait for a sink, and since when the oldest of them does; None if none waits."""

    sink: str
    waiting: int
    oldest_us: int | None
    error: str


def queues(connection: Connection) -> list[SinkQueue]:
    """Return the queue of each sink, in the order of their names; `error` is that of the oldest event."""
    oldest = (
        select(
            waiting_events.c.sink, func.min(waiting_events.c.event_id).label("event_id"), func.count().label("waiting")
        )
        .group_by(waiting_events.c.sink)
        .subquery()
    )
    query = (
        select(
            sinks.c.name.label("sink"),
            func.coalesce(oldest.c.waiting, 0).label("waiting"),
            event.c.happened_us.label("oldest_us"),
            func.coalesce(waiting_events.c.error, "").label("error"),
        )
        .select_from(sinks)
        .outerjoin(oldest, oldest.c.sink == sinks.c.name)
        .outerjoin(event, event.c.id == oldest.c.event_id)
        .outerjoin(
            waiting_events, (waiting_events.c.sink == sinks.c.name) & (waiting_events.c.event_id == oldest.c.event_id)
        )
        .order_by(sinks.c.name)
    )
    return records(SinkQueue, connection.execute(query))
