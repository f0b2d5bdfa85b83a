"""States of the intake and the line, and the heartbeats of processes. The newest row of a subject is its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update

from coe.serve.clock import SECOND_US
from coe.serve.database import event_log
from coe.serve.database.row_types import in_turn, listed, records, upserting
from coe.serve.database.tables import Heartbeat, StateChange, heartbeat, state_change
from coe.serve.enums import EventKind, Intake, LineState, Process, Subject

SILENT_S = 8.0  # after this time without a sign of life, which comes every second, the worker counts as silent


def change(
    connection: Connection, subject: Subject, state: Intake | LineState, *, by: str, now_us: int, reason: str = ""
) -> bool:
    """Note a new state with its event; False if it is not new. A person's drain counts also while the worker ends."""
    in_turn(connection, state_change)
    before = current(connection, subject)
    if before is not None and before.state == state.value:
        is_of_end = state is Intake.DRAINING and before.changed_by == Process.WORKER
        if not is_of_end or by == Process.WORKER:
            return False
    row = {"subject": subject, "state": state.value, "changed_us": now_us, "changed_by": by, "reason": reason}
    connection.execute(insert(state_change).values(row))
    body = {
        "subject": subject,
        "before": before.state if before else None,
        "state": state,
        "lasted_us": max(0, now_us - before.changed_us) if before else None,  # a clock may be set back
        "by": by,
        "reason": reason,
    }
    event_log.append(connection, EventKind.STATE_CHANGED, now_us, body)
    return True


def hold(connection: Connection, *, by: str, now_us: int, reason: str) -> None:
    """Hold the line; one that a person drains stays drained."""
    newest = current(connection, Subject.INTAKE)
    if newest is None or newest.state != Intake.DRAINING or newest.changed_by == Process.WORKER:
        change(connection, Subject.INTAKE, Intake.HELD, by=by, now_us=now_us, reason=reason)


def current(connection: Connection, subject: Subject) -> StateChange | None:
    """Return the newest change of a subject, which says its state; None if it never had a state."""
    return next(iter(listed(connection, StateChange, state_change.c.subject == subject, newest=True, limit=1)), None)


def intake(connection: Connection) -> Intake:
    """Return whether the gate takes in boards; it does until somebody says otherwise."""
    newest = current(connection, Subject.INTAKE)
    return Intake(newest.state) if newest else Intake.OPEN


def why_closed(connection: Connection) -> str:
    """Return why no board is taken in; empty if boards are."""
    newest = current(connection, Subject.INTAKE)
    if newest is None or newest.state == Intake.OPEN:
        return ""
    return f"the line is held by {newest.reason}" if newest.state == Intake.HELD else "the service is draining"


def line(connection: Connection) -> LineState:
    """Return the state of the line; DOWN if it never said one."""
    newest = current(connection, Subject.LINE)
    return LineState(newest.state) if newest else LineState.DOWN


def beat(
    connection: Connection,
    process: Process,
    *,
    pid: int,
    now_us: int,
    facts: Mapping[str, Any] | None = None,
    experts: Mapping[str, Any] | None = None,
) -> None:
    """Note a sign of life of a process; `facts` and `experts` of before stay where these are None."""
    row = {"process": process, "pid": pid, "beat_us": now_us}
    row |= {} if facts is None else {"facts": dict(facts)}
    row |= {} if experts is None else {"experts": dict(experts)}
    statement = upserting(connection.dialect.name)(heartbeat).values({"facts": {}, **row})
    connection.execute(statement.on_conflict_do_update(index_elements=["process"], set_=row))


def heartbeats(connection: Connection) -> dict[Process, Heartbeat]:
    """Return the last sign of life of each process that ever gave one."""
    return {beat.process: beat for beat in records(Heartbeat, connection.execute(select(heartbeat)))}


def living_worker(connection: Connection, now_us: int) -> Heartbeat | None:
    """Return the last sign of life of the worker; None if it is silent."""
    beat = heartbeats(connection).get(Process.WORKER)
    return beat if beat is not None and lives(beat, now_us) else None


def lives(beat: Heartbeat, now_us: int) -> bool:
    """Return whether a process did not end, and gave its sign of life lately."""
    return beat.pid != 0 and abs(now_us - beat.beat_us) <= SILENT_S * SECOND_US


def leave(connection: Connection, process: Process) -> None:
    """Note that a process ended in order: its sign of life has no process any more."""
    connection.execute(update(heartbeat).where(heartbeat.c.process == process).values(pid=0))
