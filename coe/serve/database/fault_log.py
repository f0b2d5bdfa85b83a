"""Faults of the service. A fault stays open until somebody, or the process whose fault it is, clears it.

The same fault again counts up one row: a fault that comes a thousand times an hour fills neither table nor page.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from coe.serve.database import event_log
from coe.serve.database.row_types import found, in_turn, record, records, shown
from coe.serve.database.tables import NAME, fault
from coe.serve.enums import EventKind, FaultKind, Process
from coe.visible import visible


@dataclass(frozen=True, slots=True)
class NewFault:
    """A fault of a process; `about` names the recipe, sink or view that it concerns, `message` is for people."""

    process: Process
    kind: FaultKind
    message: str
    about: str = ""
    board_id: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; open while `cleared_us` is None. It happened `times` times, the last time at `seen_us`."""

    id: int
    process: Process
    kind: FaultKind
    about: str
    message: str
    board_id: int | None
    raised_us: int
    seen_us: int
    times: int
    cleared_us: int | None
    cleared_by: str


def note(connection: Connection, new: NewFault, now_us: int) -> Fault:
    """Open a fault and append the event; if the same process, kind and subject has one open, count it up instead."""
    in_turn(connection, fault)
    about, message = new.about[:NAME], visible(new.message, lines=True)
    same = (fault.c.process == new.process, fault.c.kind == new.kind, fault.c.about == about)
    again = connection.execute(
        update(fault)
        .where(*same, fault.c.cleared_us.is_(None))
        .values(seen_us=now_us, times=fault.c.times + 1, message=message, board_id=new.board_id)
        .returning(fault)
    ).one_or_none()
    if again is not None:
        return record(Fault, again)
    row = {
        "process": new.process,
        "kind": new.kind,
        "about": about,
        "message": message,
        "board_id": new.board_id,
        "raised_us": now_us,
        "seen_us": now_us,
    }
    opened = record(Fault, connection.execute(insert(fault).values(row).returning(fault)).one())
    event_log.append(connection, EventKind.FAULT_RAISED, now_us, _body(opened), new.board_id)
    return opened


def get(connection: Connection, id: int) -> Fault | None:
    """Return a fault, or None."""
    return found(Fault, connection.execute(select(fault).where(fault.c.id == id)))


def clear(connection: Connection, id: int, *, by: str, now_us: int) -> bool:
    """Close a fault and append the event; False if there is no such open fault."""
    return bool(_clear(connection, now_us, by, fault.c.id == id))


def clear_about(connection: Connection, process: Process, kind: FaultKind, *, about: str = "", now_us: int) -> bool:
    """Close the fault of a process that it has overcome by itself; False if none was open."""
    same = (fault.c.process == process) & (fault.c.kind == kind) & (fault.c.about == about[:NAME])
    return bool(_clear(connection, now_us, process.value, same))


def clear_gone(connection: Connection, kind: FaultKind, names: Collection[str], *, by: Process, now_us: int) -> None:
    """Close the faults of what the config has no longer: nobody else would."""
    _clear(connection, now_us, by.value, (fault.c.kind == kind) & fault.c.about.not_in(names))


def _clear(connection: Connection, now_us: int, by: str, which: object) -> list[Fault]:
    rows = connection.execute(
        update(fault)
        .where(which, fault.c.cleared_us.is_(None))  # type: ignore[arg-type]
        .values(cleared_us=now_us, cleared_by=by)
        .returning(fault)
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
    return records(
        Fault, connection.execute(select(fault).where(fault.c.cleared_us.is_(None)).order_by(fault.c.id.desc()))
    )


def newest(connection: Connection, *, limit: int = 100) -> list[Fault]:
    """Return faults, open and cleared, the newest first."""
    return records(Fault, connection.execute(select(fault).order_by(fault.c.id.desc()).limit(limit)))
