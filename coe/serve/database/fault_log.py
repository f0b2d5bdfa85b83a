"""Faults of the service. A fault stays open until somebody, or the process whose fault it is, clears it.

The same fault again counts up one row: a fault that comes a thousand times an hour fills neither table nor page.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, update

from coe.helpers.visible import visible
from coe.serve.database import event_log, row_types
from coe.serve.database.row_types import NAME, found, in_turn, listed, records, shown, values_of
from coe.serve.database.tables import Fault, NewFault, fault
from coe.serve.enums import EventKind, FaultKind, Process


def note(connection: Connection, new: NewFault, now_us: int) -> Fault:
    """Open a fault and append the event; if the same process, kind and subject has one open, count it up instead."""
    in_turn(connection, fault)
    new = replace(new, about=new.about[:NAME], message=visible(new.message, lines=True))
    again = connection.execute(
        update(fault)
        .where(_of(new.process, new.kind, new.about), fault.c.cleared_us.is_(None))
        .values(seen_us=now_us, times=fault.c.times + 1, message=new.message, board_id=new.board_id)
        .returning(*Fault.columns)
    )
    if (counted := found(Fault, again)) is not None:
        return counted
    opened = row_types.add(connection, Fault, values_of(new) | {"raised_us": now_us, "seen_us": now_us})
    event_log.append(connection, EventKind.FAULT_RAISED, now_us, _body(opened), new.board_id)
    return opened


def clear(connection: Connection, id: int, *, by: str, now_us: int) -> bool:
    """Close a fault and append the event; False if there is no such open fault."""
    return bool(_clear(connection, now_us, by, fault.c.id == id))


def clear_about(connection: Connection, process: Process, kind: FaultKind, *, about: str = "", now_us: int) -> bool:
    """Close the fault of a process that it has overcome by itself; False if none was open."""
    return bool(_clear(connection, now_us, process.value, _of(process, kind, about)))


def _of(process: Process, kind: FaultKind, about: str) -> ColumnElement[bool]:
    return (fault.c.process == process) & (fault.c.kind == kind) & (fault.c.about == about[:NAME])


def clear_gone(connection: Connection, kind: FaultKind, names: Collection[str], *, by: Process, now_us: int) -> None:
    """Close the faults of what the config has no longer: nobody else would."""
    _clear(connection, now_us, by.value, (fault.c.kind == kind) & fault.c.about.not_in(names))


def _clear(connection: Connection, now_us: int, by: str, which: ColumnElement[bool]) -> list[Fault]:
    rows = connection.execute(
        update(fault)
        .where(which, fault.c.cleared_us.is_(None))
        .values(cleared_us=now_us, cleared_by=by)
        .returning(*Fault.columns)
    )
    cleared = records(Fault, rows)
    for cleared_fault in cleared:
        body = {**_body(cleared_fault), "by": by}
        event_log.append(connection, EventKind.FAULT_CLEARED, now_us, body, cleared_fault.board_id)
    return cleared


def _body(told: Fault) -> dict[str, object]:
    return shown(told, "process about message", fault="id", fault_kind="kind")


def open_faults(connection: Connection) -> list[Fault]:
    """Return the open faults, the newest first."""
    return listed(connection, Fault, fault.c.cleared_us.is_(None), newest=True)


def newest(connection: Connection, *, limit: int = 100) -> list[Fault]:
    """Return faults, open and cleared, the newest first."""
    return listed(connection, Fault, newest=True, limit=limit)
