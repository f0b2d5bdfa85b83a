"""Boards and where they stand. A board leaves an undecided state once, by one conditional update."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from coe.core import Verdict
from coe.helpers.spelling import composed
from coe.helpers.visible import visible
from coe.serve.database import call_rows, event_log, fault_log, row_types
from coe.serve.database import tables as t
from coe.serve.database.row_types import change, found, in_turn, listed, records, shown, upserting, values_of
from coe.serve.database.tables import Board, Call, NewBoard, NewCall, View, board, call, recipe
from coe.serve.enums import UNDECIDED, BoardState, EventKind
from coe.serve.stop_rules import NO_RULES, StopRules

# Statements of the line and of the intake are built once: to build them takes longer than to run them.
_OF_KEY = sa.select(*Board.columns).where(board.c.key == sa.bindparam("of_key"))
_UNDECIDED_AFTER = (
    sa.select(*Board.columns)
    .where(board.c.state.in_(UNDECIDED), board.c.id > sa.bindparam("after_id"))
    .order_by(board.c.id)
    .limit(sa.bindparam("at_most"))
)
_LOCK = sa.select(board.c.id).where(board.c.id == sa.bindparam("locked_id")).with_for_update()
_BEGIN = sa.update(board).where(board.c.id == sa.bindparam("begun_id"), board.c.state.in_(UNDECIDED))
_BEGIN_AND_COUNT = _BEGIN.values(attempts=board.c.attempts + 1)
_SERIALS: sa.BindParameter[Any] = sa.bindparam("serials", expanding=True)
_NAMED = board.alias()
OF_SERIALS = board.c.id.in_(
    sa.union_all(
        sa.select(_NAMED.c.id).where(_NAMED.c.serial.in_(_SERIALS)),
        sa.select(t.unit_serial.c.board_id).where(t.unit_serial.c.serial.in_(_SERIALS)),
    )
)
_PRODUCT = sa.select(recipe.c.name).where(recipe.c.id == sa.bindparam("of_recipe_id")).scalar_subquery()
_VERSIONS = recipe.alias()
_EARLIER = (
    sa.select(sa.func.count())
    .select_from(board)
    .where(OF_SERIALS, board.c.side == sa.bindparam("of_side"), board.c.id != sa.bindparam("of_id"))
    # The sum with 0 keeps SQLite from reading all boards of the recipe by its index: serials narrow the search more.
    .where((board.c.recipe_id + 0).in_(sa.select(_VERSIONS.c.id).where(_VERSIONS.c.name == _PRODUCT)))
)
_DECIDED_EARLIER = _EARLIER.where(board.c.decided_us.is_not(None))
_EARLIER_TOO = _EARLIER.where(board.c.state != BoardState.ABORTED)


def lock(connection: sa.Connection, id: int) -> None:
    """Let no other transaction change a board before this one ends; locks go from boards to calls to events."""
    connection.execute(_LOCK, {"locked_id": id})


def accept(connection: sa.Connection, new: NewBoard) -> Board:
    """Add a board, whose key must be new (IntegrityError), with its probable pass and the event of its acceptance."""
    in_turn(connection, board)
    row = values_of(new) | {"state": BoardState.ACCEPTED, "request": dict(new.request)}
    row["pass_number"] = 1 + _count(connection, _EARLIER_TOO, new)
    accepted = row_types.add(connection, Board, row)
    if units := _units(new):
        connection.execute(sa.insert(t.unit_serial), [{"serial": serial, "board_id": accepted.id} for serial in units])
    body = {**accepted.facts, "due_us": accepted.due_us}
    event_log.append(connection, EventKind.BOARD_ACCEPTED, new.accepted_us, body, accepted.id)
    return accepted


def pass_of(connection: sa.Connection, deciding: Board) -> int:
    """Return which pass of its product, serial and side a board is that gets its decision now; 1 without a serial.

    A panel whose units have serials is known by those: the serial of a carrier comes back with other units.
    """
    return 1 + _count(connection, _DECIDED_EARLIER, deciding)


def _count(connection: sa.Connection, earlier: Any, one: NewBoard | Board) -> int:
    serials = _units(one) or ([one.serial] if one.serial else [])
    if not serials:
        return 0
    known = {"serials": serials, "of_side": one.side, "of_recipe_id": one.recipe_id, "of_id": getattr(one, "id", 0)}
    return connection.scalar(earlier, known) or 0


def _units(one: NewBoard | Board) -> list[str]:
    return sorted({serial for serial in one.request.get("serials", {}).values() if serial})


def newest_decided(connection: sa.Connection, serial: str) -> int | None:
    """Return the id of the newest decided board that has a serial, or that is the panel of a unit that has it."""
    query = sa.select(sa.func.max(board.c.id)).where(OF_SERIALS, board.c.decided_us.is_not(None))
    newest_id: int | None = connection.scalar(query, {"serials": [composed(serial)]})
    return newest_id


def of_key(connection: sa.Connection, key: str) -> Board | None:
    """Return the board that was handed in under a key, or None."""
    return found(Board, connection.execute(_OF_KEY, {"of_key": key}))


def undecided(connection: sa.Connection, *, after_id: int = 0, limit: int = 100) -> list[Board]:
    """Return boards that need a decision, in the order of their acceptance."""
    return records(Board, connection.execute(_UNDECIDED_AFTER, {"after_id": after_id, "at_most": limit}))


def count_undecided(connection: sa.Connection) -> int:
    """Return how many boards need a decision."""
    return connection.scalar(sa.select(sa.func.count()).where(board.c.state.in_(UNDECIDED))) or 0


def newest(connection: sa.Connection, *, limit: int = 50) -> list[Board]:
    """Return boards, the newest first."""
    return listed(connection, Board, newest=True, limit=limit)


def take_up(connection: sa.Connection, id: int) -> bool:
    """Count an attempt before a board is located, because locating may end the worker; False if it is not undecided."""
    return change(connection, board, *_undecided(id), attempts=board.c.attempts + 1)


def _undecided(id: int) -> tuple[sa.ColumnElement[bool], ...]:
    return board.c.id == id, board.c.state.in_(UNDECIDED)


def begin(connection: sa.Connection, id: int, now_us: int, *, is_counted: bool = False) -> bool:
    """Note that the worker begins a board, counted by `take_up` or here; False if it is no longer undecided."""
    begun = {"begun_id": id, "state": BoardState.RUNNING, "started_us": now_us}
    return connection.execute(_BEGIN if is_counted else _BEGIN_AND_COUNT, begun).rowcount == 1


def located(connection: sa.Connection, id: int) -> bool:
    """Note that the components of an accepted board are found in its pictures; False if it is not accepted."""
    is_accepted = (board.c.id == id, board.c.state == BoardState.ACCEPTED)
    return change(connection, board, *is_accepted, state=BoardState.LOCATED)


def endanger(connection: sa.Connection, boards: Sequence[Board], now_us: int) -> None:
    """Say that undecided boards will probably be late, each once; all are locked before the first event."""
    query = (
        sa.update(board)
        .where(board.c.id == sa.bindparam("late_id"), board.c.endangered_us.is_(None), board.c.state.in_(UNDECIDED))
        .values(endangered_us=now_us)
    )
    named = [late_board for late_board in boards if connection.execute(query, {"late_id": late_board.id}).rowcount]
    for late_board in named:
        body = {**late_board.facts, "due_us": late_board.due_us}
        event_log.append(connection, EventKind.BOARD_ENDANGERED, now_us, body, late_board.id)


def abort(connection: sa.Connection, aborted_board: Board, now_us: int, *, reason: str) -> bool:
    """Take back an undecided board, and append the event; False if it is decided or aborted already."""
    if not change(connection, board, *_undecided(aborted_board.id), state=BoardState.ABORTED, reason=reason):
        return False
    body = {**aborted_board.facts, "reason": reason}
    event_log.append(connection, EventKind.BOARD_ABORTED, now_us, body, aborted_board.id)
    return True


def findings_of(connection: sa.Connection, id: int) -> bytes | None:
    """Return the packed OK findings of a board (`coe.serve.database.board_rows`); None before its decision."""
    return connection.scalar(sa.select(board.c.findings).where(board.c.id == id))


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """Which boards are searched; None is no condition.

    `serial` is that of the board or of a unit of the panel, `component` a component type that the board has a call of.
    Boards were accepted from `since_us` on and before `until_us`.
    """

    serial: str | None = None
    key: str | None = None
    verdict: Verdict | None = None
    component: str | None = None
    state: BoardState | None = None
    since_us: int | None = None
    until_us: int | None = None


def find(connection: sa.Connection, asked: BoardFilter, *, limit: int, after: Board | None = None) -> list[Board]:
    """Return the newest boards of a filter, or those that come after a board.

    They are ordered by the time of their acceptance and by id, neither of which changes, so that no board comes twice
    and none is left out from page to page.
    """
    query = sa.select(*Board.columns).where(*_conditions(asked))
    if after is not None:
        query = query.where(sa.tuple_(board.c.accepted_us, board.c.id) < (after.accepted_us, after.id))
    query = query.order_by(board.c.accepted_us.desc(), board.c.id.desc()).limit(limit)
    parameters = {} if asked.serial is None else {"serials": [composed(asked.serial)]}
    return records(Board, connection.execute(query, parameters))


def _conditions(asked: BoardFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if asked.serial is not None:
        found.append(OF_SERIALS)
    if asked.key is not None:
        found.append(board.c.key == asked.key)
    if asked.since_us is not None:
        found.append(board.c.accepted_us >= asked.since_us)
    if asked.until_us is not None:
        found.append(board.c.accepted_us < asked.until_us)
    if asked.component is not None:
        called = sa.select(call.c.board_id).where(call.c.component == composed(asked.component))
        found.append(board.c.id.in_(called))
    if asked.verdict is not None:
        found.append(board.c.verdict == asked.verdict)
    if asked.state is not None:
        found.append(board.c.state == asked.state)
    return found


# The OK findings of a board as one compressed value, and good pictures. This file alone knows its form.
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class GoodComponent:
    """An OK component with its view, its place there (None: alone), and its findings, rows of `Finding.to_dict`."""

    refdes: str
    component: str
    view_id: int
    place: Any
    findings: Sequence[Any]


def pack(components: Sequence[GoodComponent]) -> bytes:
    """Return components as compressed JSON."""
    rows = [
        [component.refdes, component.component, component.view_id, component.place, list(component.findings)]
        for component in components
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":"), allow_nan=False).encode(), _LEVEL)


def unpack(packed: bytes | None) -> list[GoodComponent]:
    """Return the components of a packed value; none for None."""
    return [] if packed is None else [GoodComponent(*row) for row in json.loads(zlib.decompress(packed))]


_BOARDS = 12  # how many boards are looked through: a part that was never good in this many boards has no good picture


def good_picture(connection: sa.Connection, call: Call) -> tuple[View, Any] | None:
    """Return the newest view and place of the same place that was OK on another board, else of the same type."""
    query = sa.select(board.c.id, board.c.findings).where(
        board.c.state.in_((BoardState.DECIDED, BoardState.VERIFIED)), board.c.id != (call.board_id or 0)
    )
    if call.board_id is not None:
        own = sa.select(recipe.c.name).join(board, board.c.recipe_id == recipe.c.id).where(board.c.id == call.board_id)
        versions = sa.select(recipe.c.id).where(recipe.c.name == own.scalar_subquery())
        query = query.where(board.c.recipe_id.in_(versions))
    # Boards that are OK as a whole come first, because nothing on them is in doubt.
    clean = query.where(board.c.verdict == Verdict.OK).order_by(board.c.id.desc()).limit(_BOARDS)
    others = query.where(board.c.verdict != Verdict.OK).order_by(board.c.id.desc()).limit(_BOARDS)
    of_component: tuple[View, Any] | None = None
    for rows in (clean, others):
        for row in connection.execute(rows):
            for good in unpack(row.findings):
                is_same = good.refdes == call.refdes
                if good.component != call.component or (of_component is not None and not is_same):
                    continue
                view = row_types.get(connection, View, good.view_id)
                if view is not None and view.removed_us is None:
                    of_component = view, good.place
                    if is_same:
                        return of_component
    return of_component


# Decisions of boards. A board gets one decision, in one transaction; later findings only raise its severity.
# Statements of the line are built once: to build them takes longer than to run them.
_DECIDE = sa.update(board).where(board.c.id == sa.bindparam("decided_id"), board.c.state.in_(UNDECIDED))


@dataclass(frozen=True, slots=True)
class Decision:
    """A board's verdict with all that goes into the history with it.

    `calls` are the components that are not OK; `good` are those that are OK. `late` says that a
    component had no finding in time. `reason` says why the whole board is not OK, if that is no component's fault.
    """

    board: Board
    verdict: Verdict
    decided_us: int
    late: bool
    calls: Sequence[NewCall]
    good: Sequence[GoodComponent]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Amendment:
    """Findings of a decided board that came late: `raised` are components that are worse than the decision said."""

    board_id: int
    amended_us: int
    raised: Sequence[NewCall]


def decide(connection: sa.Connection, decision: Decision, rules: StopRules = NO_RULES) -> bool:
    """Write a decision, its calls, its event, and the alarms that it gives by stop rules.

    False if the board has a decision or was aborted.

    A board that is OK and has no calls needs nobody's word, so it counts as verified at once. Whether it
    is a first pass is counted now: boards may be decided in another order than they came, and not all are.
    """
    fault_log.begin(connection, rules)
    decided = replace(decision.board, pass_number=pass_of(connection, decision.board))
    defects = len(decision.calls)
    needs_word = defects > 0 or decision.verdict is not Verdict.OK
    state = BoardState.DECIDED if needs_word else BoardState.VERIFIED
    values = {
        "state": state,
        "verdict": decision.verdict,
        "late": decision.late,
        "pass_number": decided.pass_number,
        "decided_us": decision.decided_us,
        "verified_us": None if needs_word else decision.decided_us,
        "components": defects + len(decision.good),
        "calls": defects,
        "findings": pack(decision.good),
        "reason": visible(decision.reason, lines=True),
    }
    id = decision.board.id
    if not connection.execute(_DECIDE, {"decided_id": id, **values}).rowcount:
        return False
    call_rows.add(connection, id, decision.calls, decision.decided_us)
    body = {
        **decided.facts,
        "verdict": decision.verdict,
        "late": decision.late,
        "components": values["components"],
        "reason": decision.reason,
        "calls": [_said(call) for call in decision.calls],
    }
    event_log.append(connection, EventKind.BOARD_DECIDED, decision.decided_us, body, id)
    added = upserting(connection.dialect.name)(t.decision_count).values(verdict=decision.verdict, boards=1)
    one_more = {"boards": t.decision_count.c.boards + 1}
    connection.execute(added.on_conflict_do_update(index_elements=["verdict"], set_=one_more))
    fault_log.look(connection, rules, id, decision.decided_us)
    return True


def amend(connection: sa.Connection, amendment: Amendment, rules: StopRules = NO_RULES) -> bool:
    """Add findings that came after the decision; return whether the severity of a component rose.

    A component that the decision called REVIEW, because it was late, becomes NG if its finding says so. A verdict is
    never lowered, and a call that a person has answered stays as it is.
    """
    fault_log.begin(connection, rules)
    lock(connection, amendment.board_id)
    amended = row_types.get(connection, Board, amendment.board_id)
    assert amended is not None
    is_raised = _raise(connection, amended, amendment)
    if is_raised:
        fault_log.look(connection, rules, amendment.board_id, amendment.amended_us)
    return is_raised


def _raise(connection: sa.Connection, amended: Board, amendment: Amendment) -> bool:
    raised: list[NewCall] = []
    for new in amendment.raised:
        before = call_rows.of_component(connection, amendment.board_id, new.refdes)
        if before is not None and call_rows.raise_verdict(connection, before, new):
            raised.append(new)
    if not raised:
        return False
    worst = max((call.verdict for call in raised), key=lambda verdict: verdict.severity)
    assert amended.verdict is not None
    verdict = worst if worst.severity > amended.verdict.severity else amended.verdict
    connection.execute(
        sa.update(board).where(board.c.id == amended.id).values(verdict=verdict, revision=board.c.revision + 1)
    )
    body = {
        **amended.facts,
        "verdict": verdict,
        "revision": amended.revision + 1,
        "calls": [_said(call) for call in raised],
    }
    event_log.append(connection, EventKind.BOARD_AMENDED, amendment.amended_us, body, amended.id)
    return True


def _said(call: NewCall) -> dict[str, object]:
    return shown(call, "refdes component verdict reason label score late")
