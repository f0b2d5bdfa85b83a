"""Events that sinks have not been told yet. A row is removed only after its sink has acknowledged the event.

A sink gets its events in their order and at least once; the event's uuid lets it drop a repetition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from coe.helpers.visible import visible
from coe.serve.database.row_types import change, records
from coe.serve.database.tables import Event, event
from coe.serve.database.tables import outbox as waiting_events
from coe.serve.database.tables import sink as sinks


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
