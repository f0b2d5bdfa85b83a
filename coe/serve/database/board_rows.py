"""Boards and where they stand. A board leaves an undecided state once, by one conditional update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, func, insert, select, union_all, update

from coe.core import Verdict
from coe.placement.placement_file import Side
from coe.serve.database import event_log
from coe.serve.database.row_types import columns, found, in_turn, record, records, shown
from coe.serve.database.tables import board, recipe, unit_serial
from coe.serve.enums import UNDECIDED, BoardState, EventKind
from coe.spelling import composed


@dataclass(frozen=True, slots=True)
class NewBoard:
    """A board whose pictures are on the disk; `digest` is that of the request, `request` is JSON."""

    key: str
    digest: str
    recipe_id: int
    serial: str
    panel: str
    side: Side
    work_order: str
    request: Mapping[str, Any]
    fed_by: str
    accepted_us: int
    due_us: int | None
    components: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Board(NewBoard):
    """A board without its findings; see `coe.serve.database.tables.board` for each field."""

    id: int
    state: BoardState
    pass_number: int
    started_us: int | None
    attempts: int
    endangered_us: int | None
    decided_us: int | None
    verified_us: int | None
    verdict: Verdict | None
    late: bool
    calls: int
    revision: int
    reason: str

    @property
    def facts(self) -> dict[str, Any]:
        """What every event about the board says of it, as JSON."""
        renamed = {"board": "id", "recipe": "recipe_id", "pass": "pass_number"}
        return shown(self, "key serial panel side work_order", **renamed)


COLUMNS = columns(board, "findings", "swept_us")
"""The columns of `Board`."""
# Statements of the line and of the intake are built once: to build them takes longer than to run them.
_OF_ID = select(*COLUMNS).where(board.c.id == bindparam("of_id"))
_OF_KEY = select(*COLUMNS).where(board.c.key == bindparam("of_key"))
_UNDECIDED_AFTER = (
    select(*COLUMNS)
    .where(board.c.state.in_(UNDECIDED), board.c.id > bindparam("after_id"))
    .order_by(board.c.id)
    .limit(bindparam("at_most"))
)
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


def accept(connection: Connection, new: NewBoard) -> Board:
    """Add a board, and append the event of its acceptance; its key must be new (IntegrityError).

    Its pass is what it will be if all boards before it are decided first; the decision counts again.
    """
    in_turn(connection, board)
    row = {name: getattr(new, name) for name in NewBoard.__dataclass_fields__}
    row |= {"state": BoardState.ACCEPTED, "request": dict(new.request)}
    row["pass_number"] = 1 + _count(connection, _EARLIER_TOO, new)
    accepted = record(Board, connection.execute(insert(board).values(row).returning(*COLUMNS)).one())
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


def get(connection: Connection, id: int) -> Board | None:
    """Return a board, or None."""
    return found(Board, connection.execute(_OF_ID, {"of_id": id}))


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
    return records(Board, connection.execute(select(*COLUMNS).order_by(board.c.id.desc()).limit(limit)))


def take_up(connection: Connection, id: int) -> bool:
    """Count an attempt before a board is located, because locating may end the worker; False if it is not undecided."""
    taken = connection.execute(
        update(board).where(board.c.id == id, board.c.state.in_(UNDECIDED)).values(attempts=board.c.attempts + 1)
    )
    return taken.rowcount == 1


def begin(connection: Connection, id: int, now_us: int, *, is_counted: bool = False) -> bool:
    """Note that the worker begins a board; False if it is no longer undecided, for example aborted.

    `is_counted` says that `take_up` has counted this attempt.
    """
    begun = {"begun_id": id, "state": BoardState.RUNNING, "started_us": now_us}
    return connection.execute(_BEGIN if is_counted else _BEGIN_AND_COUNT, begun).rowcount == 1


def located(connection: Connection, id: int) -> bool:
    """Note that the components of an accepted board are found in its pictures; False if it is not accepted."""
    moved = connection.execute(
        update(board).where(board.c.id == id, board.c.state == BoardState.ACCEPTED).values(state=BoardState.LOCATED)
    )
    return moved.rowcount == 1


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
    aborted = connection.execute(
        update(board)
        .where(board.c.id == aborted_board.id, board.c.state.in_(UNDECIDED))
        .values(state=BoardState.ABORTED, reason=reason)
    )
    if aborted.rowcount:
        body = {**aborted_board.facts, "reason": reason}
        event_log.append(connection, EventKind.BOARD_ABORTED, now_us, body, aborted_board.id)
    return aborted.rowcount == 1


def findings_of(connection: Connection, id: int) -> bytes | None:
    """Return the packed OK findings of a board (`coe.serve.database.findings`); None before its decision."""
    return connection.scalar(select(board.c.findings).where(board.c.id == id))
