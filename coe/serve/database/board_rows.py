"""Boards and where they stand. A board leaves an undecided state once, by one conditional update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    bindparam,
    func,
    insert,
    select,
    tuple_,
    union_all,
    update,
)

from coe.core import Verdict
from coe.helpers.spelling import composed
from coe.serve.database import event_log, row_types
from coe.serve.database.row_types import change, found, in_turn, listed, records, values_of
from coe.serve.database.tables import Board, NewBoard, board, call, recipe, unit_serial
from coe.serve.enums import UNDECIDED, BoardState, EventKind

# Statements of the line and of the intake are built once: to build them takes longer than to run them.
_OF_KEY = select(*Board.columns).where(board.c.key == bindparam("of_key"))
_UNDECIDED_AFTER = (
    select(*Board.columns)
    .where(board.c.state.in_(UNDECIDED), board.c.id > bindparam("after_id"))
    .order_by(board.c.id)
    .limit(bindparam("at_most"))
)
_LOCK = select(board.c.id).where(board.c.id == bindparam("locked_id")).with_for_update()
_BEGIN = update(board).where(board.c.id == bindparam("begun_id"), board.c.state.in_(UNDECIDED))
_BEGIN_AND_COUNT = _BEGIN.values(attempts=board.c.attempts + 1)
_SERIALS: BindParameter[Any] = bindparam("serials", expanding=True)
_NAMED = board.alias()
OF_SERIALS = board.c.id.in_(
    union_all(
        select(_NAMED.c.id).where(_NAMED.c.serial.in_(_SERIALS)),
        select(unit_serial.c.board_id).where(unit_serial.c.serial.in_(_SERIALS)),
    )
)
_PRODUCT = select(recipe.c.name).where(recipe.c.id == bindparam("of_recipe_id")).scalar_subquery()
_VERSIONS = recipe.alias()
_EARLIER = (
    select(func.count())
    .select_from(board)
    .where(OF_SERIALS, board.c.side == bindparam("of_side"), board.c.id != bindparam("of_id"))
    # The sum with 0 keeps SQLite from reading all boards of the recipe by its index: serials narrow the search more.
    .where((board.c.recipe_id + 0).in_(select(_VERSIONS.c.id).where(_VERSIONS.c.name == _PRODUCT)))
)
_DECIDED_EARLIER = _EARLIER.where(board.c.decided_us.is_not(None))
_EARLIER_TOO = _EARLIER.where(board.c.state != BoardState.ABORTED)


def lock(connection: Connection, id: int) -> None:
    """Let no other transaction change a board before this one ends.

    So two people who answer its last two calls at a time do not each see the other's call open. Locks are taken in one
    order: the board, its calls, tallies, events.
    """
    connection.execute(_LOCK, {"locked_id": id})


def accept(connection: Connection, new: NewBoard) -> Board:
    """Add a board, and append the event of its acceptance; its key must be new (IntegrityError).

    Its pass is what it will be if all boards before it are decided first; the decision counts again.
    """
    in_turn(connection, board)
    row = values_of(new) | {"state": BoardState.ACCEPTED, "request": dict(new.request)}
    row["pass_number"] = 1 + _count(connection, _EARLIER_TOO, new)
    accepted = row_types.add(connection, Board, row)
    if units := _units(new):
        connection.execute(insert(unit_serial), [{"serial": serial, "board_id": accepted.id} for serial in units])
    body = {**accepted.facts, "due_us": accepted.due_us}
    event_log.append(connection, EventKind.BOARD_ACCEPTED, new.accepted_us, body, accepted.id)
    return accepted


def pass_of(connection: Connection, deciding: Board) -> int:
    """Return which pass of its product, serial and side a board is that gets its decision now; 1 without a serial.

    A panel whose units have serials is known by those: the serial of a carrier comes back with other units.
    """
    return 1 + _count(connection, _DECIDED_EARLIER, deciding)


def _count(connection: Connection, earlier: Any, one: NewBoard | Board) -> int:
    serials = _units(one) or ([one.serial] if one.serial else [])
    if not serials:
        return 0
    known = {"serials": serials, "of_side": one.side, "of_recipe_id": one.recipe_id, "of_id": getattr(one, "id", 0)}
    return connection.scalar(earlier, known) or 0


def _units(one: NewBoard | Board) -> list[str]:
    return sorted({serial for serial in one.request.get("serials", {}).values() if serial})


def newest_decided(connection: Connection, serial: str) -> int | None:
    """Return the id of the newest decided board that has a serial, or that is the panel of a unit that has it."""
    query = select(func.max(board.c.id)).where(OF_SERIALS, board.c.decided_us.is_not(None))
    newest_id: int | None = connection.scalar(query, {"serials": [composed(serial)]})
    return newest_id


def of_key(connection: Connection, key: str) -> Board | None:
    """Return the board that was handed in under a key, or None."""
    return found(Board, connection.execute(_OF_KEY, {"of_key": key}))


def undecided(connection: Connection, *, after_id: int = 0, limit: int = 100) -> list[Board]:
    """Return boards that need a decision, in the order of their acceptance."""
    return records(Board, connection.execute(_UNDECIDED_AFTER, {"after_id": after_id, "at_most": limit}))


def count_undecided(connection: Connection) -> int:
    """Return how many boards need a decision."""
    return connection.scalar(select(func.count()).where(board.c.state.in_(UNDECIDED))) or 0


def newest(connection: Connection, *, limit: int = 50) -> list[Board]:
    """Return boards, the newest first."""
    return listed(connection, Board, newest=True, limit=limit)


def take_up(connection: Connection, id: int) -> bool:
    """Count an attempt before a board is located, because locating may end the worker; False if it is not undecided."""
    return change(connection, board, *_undecided(id), attempts=board.c.attempts + 1)


def _undecided(id: int) -> tuple[ColumnElement[bool], ...]:
    return board.c.id == id, board.c.state.in_(UNDECIDED)


def begin(connection: Connection, id: int, now_us: int, *, is_counted: bool = False) -> bool:
    """Note that the worker begins a board; False if it is no longer undecided, for example aborted.

    `is_counted` says that `take_up` has counted this attempt.
    """
    begun = {"begun_id": id, "state": BoardState.RUNNING, "started_us": now_us}
    return connection.execute(_BEGIN if is_counted else _BEGIN_AND_COUNT, begun).rowcount == 1


def located(connection: Connection, id: int) -> bool:
    """Note that the components of an accepted board are found in its pictures; False if it is not accepted."""
    is_accepted = (board.c.id == id, board.c.state == BoardState.ACCEPTED)
    return change(connection, board, *is_accepted, state=BoardState.LOCATED)


def endanger(connection: Connection, boards: Sequence[Board], now_us: int) -> None:
    """Say that undecided boards will probably be late; each board is named once.

    All boards are locked before the first event: who aborts one of them has its lock, and waits for that of events.
    """
    query = (
        update(board)
        .where(board.c.id == bindparam("late_id"), board.c.endangered_us.is_(None), board.c.state.in_(UNDECIDED))
        .values(endangered_us=now_us)
    )
    named = [late_board for late_board in boards if connection.execute(query, {"late_id": late_board.id}).rowcount]
    for late_board in named:
        body = {**late_board.facts, "due_us": late_board.due_us}
        event_log.append(connection, EventKind.BOARD_ENDANGERED, now_us, body, late_board.id)


def abort(connection: Connection, aborted_board: Board, now_us: int, *, reason: str) -> bool:
    """Take back an undecided board, and append the event; False if it is decided or aborted already."""
    if not change(connection, board, *_undecided(aborted_board.id), state=BoardState.ABORTED, reason=reason):
        return False
    body = {**aborted_board.facts, "reason": reason}
    event_log.append(connection, EventKind.BOARD_ABORTED, now_us, body, aborted_board.id)
    return True


def findings_of(connection: Connection, id: int) -> bytes | None:
    """Return the packed OK findings of a board (`coe.serve.database.findings`); None before its decision."""
    return connection.scalar(select(board.c.findings).where(board.c.id == id))


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


def find(connection: Connection, asked: BoardFilter, *, limit: int, after: Board | None = None) -> list[Board]:
    """Return the newest boards of a filter, or those that come after a board.

    They are ordered by the time of their acceptance and by id, neither of which changes, so that no board comes twice
    and none is left out from page to page.
    """
    query = select(*Board.columns).where(*_conditions(asked))
    if after is not None:
        query = query.where(tuple_(board.c.accepted_us, board.c.id) < (after.accepted_us, after.id))
    query = query.order_by(board.c.accepted_us.desc(), board.c.id.desc()).limit(limit)
    parameters = {} if asked.serial is None else {"serials": [composed(asked.serial)]}
    return records(Board, connection.execute(query, parameters))


def _conditions(asked: BoardFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if asked.serial is not None:
        found.append(OF_SERIALS)
    if asked.key is not None:
        found.append(board.c.key == asked.key)
    if asked.since_us is not None:
        found.append(board.c.accepted_us >= asked.since_us)
    if asked.until_us is not None:
        found.append(board.c.accepted_us < asked.until_us)
    if asked.component is not None:
        called = select(call.c.board_id).where(call.c.component == composed(asked.component))
        found.append(board.c.id.in_(called))
    if asked.verdict is not None:
        found.append(board.c.verdict == asked.verdict)
    if asked.state is not None:
        found.append(board.c.state == asked.state)
    return found
