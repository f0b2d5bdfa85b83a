"""Events that sinks have not been told yet. A row is removed only after its sink has acknowledged the event.

A sink gets its events in their order and at least once; the event's uuid lets it drop a repetition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from coe.serve.database import tables
from coe.serve.database.event_log import Event
from coe.serve.database.row_types import record
from coe.visible import visible


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that a sink waits for; `error` is what the last attempt met."""

    sink: str
    attempts: int
    next_try_us: int
    error: str
    event: Event


def register_sinks(connection: Connection, names: Collection[str], now_us: int) -> None:
    """Make these the sinks: a new sink gets events from now on; events for a sink that was removed are dropped."""
    before = set(connection.scalars(select(tables.sink.c.name)))
    if gone := before - set(names):
        connection.execute(delete(tables.outbox).where(tables.outbox.c.sink.in_(gone)))
        connection.execute(delete(tables.sink).where(tables.sink.c.name.in_(gone)))
    if new := sorted(set(names) - before):
        connection.execute(insert(tables.sink), [{"name": name, "added_us": now_us} for name in new])


def due(connection: Connection, sink: str, now_us: int, *, limit: int = 100) -> list[Delivery]:
    """Return what a sink is to be told now, the oldest first; nothing while its oldest event waits for another try.

    The time of the next try counts for the oldest event alone: a later event never overtakes it.
    """
    query = (
        select(tables.outbox, tables.event)
        .join(tables.event, tables.event.c.id == tables.outbox.c.event_id)
        .where(tables.outbox.c.sink == sink)
        .order_by(tables.outbox.c.event_id)
        .limit(limit)
    )
    rows = connection.execute(query).all()
    if not rows or rows[0].next_try_us > now_us:
        return []
    return [
        Delivery(
            row.sink,
            row.attempts,
            row.next_try_us,
            row.error,
            Event(row.id, row.uuid, row.kind, row.board_id, row.happened_us, row.body),
        )
        for row in rows
    ]


def delivered(connection: Connection, sink: str, event_ids: Collection[int]) -> None:
    """Note that a sink has acknowledged events."""
    connection.execute(
        delete(tables.outbox).where(tables.outbox.c.sink == sink, tables.outbox.c.event_id.in_(event_ids))
    )


def failed(connection: Connection, sink: str, event_id: int, *, error: str, next_try_us: int) -> None:
    """Note that a sink could not be told an event, and when to try again."""
    connection.execute(
        update(tables.outbox)
        .where(tables.outbox.c.sink == sink, tables.outbox.c.event_id == event_id)
        .values(attempts=tables.outbox.c.attempts + 1, next_try_us=next_try_us, error=visible(error, lines=True))
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
    return [record(SinkQueue, row) for row in connection.execute(query)]
