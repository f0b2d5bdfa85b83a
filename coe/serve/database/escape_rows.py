"""Escapes: defects that a later test found on boards that had passed. A report is added, never changed."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from coe.serve.database import board_rows, event_log
from coe.serve.database.event_log import NewEvent
from coe.serve.database.row_types import in_turn, record, shown
from coe.serve.database.tables import escape
from coe.serve.enums import EventKind


@dataclass(frozen=True, slots=True)
class NewEscape:
    """A defect that a later test found; `found_at` is the test, as "ICT"."""

    serial: str
    reported_us: int
    reported_by: str
    refdes: str = ""
    component: str = ""
    label: str = ""
    found_at: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape(NewEscape):
    """A reported escape; `board_id` is None if no board of this serial was inspected here."""

    id: int
    board_id: int | None


def report(connection: Connection, new: NewEscape) -> Escape:
    """Add an escape to the newest decided board of its serial, or to the panel of that unit, and append the event.

    A report that is there already is returned as it is: its sender had no answer, and asks again.
    """
    in_turn(connection, escape)
    board_id = board_rows.newest_decided(connection, new.serial)
    row = {name: getattr(new, name) for name in NewEscape.__dataclass_fields__} | {"board_id": board_id}
    said = [escape.c[name].is_not_distinct_from(row[name]) for name in row if not name.startswith("reported_")]
    before = connection.execute(select(escape).where(*said).order_by(escape.c.id).limit(1)).one_or_none()
    if before is not None:
        return record(Escape, before)
    added = record(Escape, connection.execute(insert(escape).values(row).returning(escape)).one())
    body = shown(added, "board_id serial refdes component label found_at")
    event_log.append(connection, NewEvent(EventKind.ESCAPE_REPORTED, new.reported_us, body, board_id))
    return added
