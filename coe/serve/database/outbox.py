"""Events that sinks have not been told yet. A row is removed only after its sink has acknowledged the event.

A sink gets its events in their order and at least once; the event's uuid lets it drop a repetition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from coe.serve.database import tables
from coe.serve.database.row_types import records
from coe.serve.database.tables import Event
from coe.visible import visible


def register_sinks(connection: Connection, names: Collection[str], now_us: int) -> None:
    """Make these the sinks: a new sink gets events from now on; events for a sink that was removed are dropped."""
    before = set(connection.scalars(select(tables.sink.c.name)))
    if gone := before - set(names):
        connection.execute(delete(tables.outbox).where(tables.outbox.c.sink.in_(gone)))
        connection.execute(delete(tables.sink).where(tables.sink.c.name.in_(gone)))
    if new := sorted(set(names) - before):
        connection.execute(insert(tables.sink), [{"name": name, "added_us": now_us} for name in new])


def waiting(connection: Connection, sink: str, *, limit: int = 100) -> list[Event]:
    """Return the events that a sink has not been told, the oldest first."""
    query = (
        select(tables.event)
        .join(tables.outbox, tables.outbox.c.event_id == tables.event.c.id)
        .where(tables.outbox.c.sink == sink)
        .order_by(tables.event.c.id)
        .limit(limit)
    )
    return records(Event, connection.execute(query))


def delivered(connection: Connection, sink: str, event_ids: Collection[int]) -> None:
    """Note that a sink has acknowledged events."""
    connection.execute(
        delete(tables.outbox).where(tables.outbox.c.sink == sink, tables.outbox.c.event_id.in_(event_ids))
    )


def failed(connection: Connection, sink: str, event_id: int, *, error: str) -> None:
    """Note that a sink could not be told an event."""
    connection.execute(
        update(tables.outbox)
        .where(tables.outbox.c.sink == sink, tables.outbox.c.event_id == event_id)
        .values(attempts=tables.outbox.c.attempts + 1, error=visible(error, lines=True))
    )


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
            tables.outbox.c.sink, func.min(tables.outbox.c.event_id).label("event_id"), func.count().label("waiting")
        )
        .group_by(tables.outbox.c.sink)
        .subquery()
    )
    query = (
        select(
            tables.sink.c.name.label("sink"),
            func.coalesce(oldest.c.waiting, 0).label("waiting"),
            tables.event.c.happened_us.label("oldest_us"),
            func.coalesce(tables.outbox.c.error, "").label("error"),
        )
        .select_from(tables.sink)
        .outerjoin(oldest, oldest.c.sink == tables.sink.c.name)
        .outerjoin(tables.event, tables.event.c.id == oldest.c.event_id)
        .outerjoin(
            tables.outbox,
            (tables.outbox.c.sink == tables.sink.c.name) & (tables.outbox.c.event_id == oldest.c.event_id),
        )
        .order_by(tables.sink.c.name)
    )
    return records(SinkQueue, connection.execute(query))
