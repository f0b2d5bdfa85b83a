"""Faults of the service, open until somebody, or the process whose fault it is, clears them; each is one row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select, update

from coe.helpers.visible import visible
from coe.serve.database import event_log, recipe_versions, row_types, states
from coe.serve.database.row_types import NAME, found, in_turn, listed, records, shown, values_of
from coe.serve.database.tables import Board, Fault, NewFault, board, call, fault, state_change, verification
from coe.serve.enums import BoardState, By, EventKind, FaultKind, Intake, Process, Subject
from coe.serve.stop_rules import Countable, SeenBoard, SeenCall, StopRule, StopRules, alarms


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


# Alarms of stop rules. They are faults: shown, told to other machines and cleared as such, each once.
_KINDS = (FaultKind.STOP_RULE, FaultKind.LINE_HELD)
_LAST = (
    select(board.c.id, board.c.late)
    .where(board.c.decided_us.is_not(None), board.c.pass_number == 1)
    .order_by(board.c.id.desc())
    .limit(bindparam("window"))
)


class _LastBoards:
    """The queries of the last boards and of their calls, built once: that takes longer than to run them."""

    def __init__(self, last: Select[Any]) -> None:
        ids = last.subquery()
        self.boards = last
        self.calls = (
            select(call.c.board_id, call.c.refdes, call.c.component, call.c.label, call.c.reason, call.c.expert)
            .add_columns(verification.c.outcome, verification.c.label.label("said"))
            .join(ids, ids.c.id == call.c.board_id)
            .outerjoin(verification, verification.c.id == call.c.verification_id)
        )


_OF_ALL = _LastBoards(_LAST)
_OF_RECIPE = _LastBoards(_LAST.where(board.c.recipe_id == bindparam("of_recipe_id")))
_ANSWERED = _LastBoards(
    _LAST.where(board.c.recipe_id == bindparam("of_recipe_id")).where(
        (board.c.state == BoardState.VERIFIED) | (board.c.id == bindparam("touched_id"))
    )
)
_READ = {Countable.CALLS: _OF_RECIPE, Countable.CONFIRMED: _ANSWERED}


def begin(connection: Connection, rules: StopRules) -> None:
    """Take the locks that `look` may need; a transaction takes them before those of boards and events."""
    if rules:
        in_turn(connection, fault)
        in_turn(connection, state_change)


def look(connection: Connection, rules: StopRules, board_id: int, now_us: int) -> None:
    """Raise the alarms that a board gives which was just decided, or whose call was answered, and hold the line."""
    touched = row_types.get(connection, Board, board_id) if rules else None
    if touched is None or touched.pass_number != 1:
        return
    for read in (_OF_RECIPE, _ANSWERED, _OF_ALL):
        counted = {name: rule for name, rule in rules.items() if _READ.get(rule.counts, _OF_ALL) is read}
        some = {name: rule for name, rule in counted.items() if rule.may_fire(touched)}
        if some:
            boards = _last_boards(connection, read, some.values(), touched)
            for name, rule in some.items():
                _raise(connection, name, rule, boards, touched.id, now_us)


def _raise(
    connection: Connection, name: str, rule: StopRule, boards: Sequence[SeenBoard], touched: int, now_us: int
) -> None:
    for alarm in alarms(name, rule, boards, touched):
        until = _told_until(connection, alarm.about)
        again = alarms(name, rule, [one for one in boards if one.id > until], touched) if until else [alarm]
        for told in again:
            if told.about == alarm.about:
                kind = FaultKind.LINE_HELD if rule.hold else FaultKind.STOP_RULE
                new = NewFault(Process.WORKER, kind, told.message, told.about, max(told.boards))
                note(connection, new, now_us)
                if rule.hold:
                    states.hold(connection, by=Process.WORKER, now_us=now_us, reason=told.message)


def acknowledge(connection: Connection, id: int, *, by: str, now_us: int) -> bool:
    """Close a fault as `clear` does; the line goes on once no alarm that holds it is open."""
    in_turn(connection, fault)
    in_turn(connection, state_change)
    if not clear(connection, id, by=by, now_us=now_us):
        return False
    if not _holding(connection) and states.intake(connection) is Intake.HELD:
        states.change(connection, Subject.INTAKE, Intake.OPEN, by=by, now_us=now_us)
    return True


def why_held(connection: Connection) -> str:
    """Return the newest alarm that holds the line, until the end of the transaction; empty if none does."""
    in_turn(connection, fault)
    in_turn(connection, state_change)
    return next((one.message for one in _holding(connection)), "")


def _holding(connection: Connection) -> list[Fault]:
    return [one for one in open_faults(connection) if one.kind is FaultKind.LINE_HELD]


def _told_until(connection: Connection, about: str) -> int:
    """Return the newest board of which an alarm told that was cleared since; what came until then counts no more."""
    query = select(func.max(fault.c.board_id)).where(
        fault.c.kind.in_(_KINDS), fault.c.about == about[:NAME], fault.c.cleared_us.is_not(None)
    )
    return connection.scalar(query) or 0


def _last_boards(
    connection: Connection, read: _LastBoards, rules: Iterable[StopRule], touched: Board
) -> list[SeenBoard]:
    ids = {"of_recipe_id": touched.recipe_id, "touched_id": touched.id}
    which = ids | {"window": max(rule.window for rule in rules)}
    feeders: dict[str, str] = {}
    if any(By.FEEDER in rule.same for rule in rules):  # the content may be large
        feeders = recipe_versions.get(connection, touched.recipe_id).content.get("feeders") or {}
    calls: dict[int, list[SeenCall]] = defaultdict(list)
    for row in connection.execute(read.calls, which):
        feeder, label = feeders.get(By.REFDES.of(row), ""), row.said or row.label
        seen = SeenCall(row.refdes, row.component, label, row.reason, row.outcome, row.expert, feeder)
        calls[row.board_id].append(seen)
    return [SeenBoard(row.id, row.late, calls[row.id]) for row in connection.execute(read.boards, which)]
