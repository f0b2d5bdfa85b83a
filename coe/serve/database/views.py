"""Pictures of boards: a row for each file that is whole and on the disk. The file comes before its row."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, exists, func, select, union_all

from coe.core import Verdict
from coe.serve.clock import SECOND_US
from coe.serve.database.row_types import change, found, in_turn, listed, record, records, upserting, values_of
from coe.serve.database.tables import NewView, View, board, call, view
from coe.serve.enums import UNDECIDED, BoardState

# Statements of the intake are built once: to build them takes longer than to run them.
_NAMED = select(view).where(
    view.c.board_key == bindparam("of_key"), view.c.name == bindparam("of_name"), view.c.removed_us.is_(None)
)
_COUNT_OF_BOARD = select(func.count()).where(view.c.board_key == bindparam("of_key"))

CLOCK_US = 1_672_531_200 * SECOND_US  # 2023: a clock that shows an earlier time was not set yet


def hold(connection: Connection) -> None:
    """Let nobody else put a picture in, accept a board or remove pictures before this transaction ends.

    Each of the three first checks whether the others have happened. Without this, a picture could be replaced or
    removed between the moment when a board was found in order and that in which it is accepted.
    """
    in_turn(connection, view)


def add(connection: Connection, new: NewView) -> View:
    """Add a view, or replace the one of its name, whose file belongs to nobody then; the board is not accepted yet."""
    return record(View, connection.execute(_putting(connection.dialect.name), values_of(new)).one())


@cache
def _putting(dialect: str) -> Any:
    statement = upserting(dialect)(view)
    given = {name: statement.excluded[name] for name in NewView.__dataclass_fields__}
    return statement.on_conflict_do_update(
        index_elements=["board_key", "name"], set_={**given, "removed_us": None}
    ).returning(view)


def of_ids(connection: Connection, ids: Collection[int]) -> dict[int, View]:
    """Return views by their ids."""
    return {one.id: one for one in listed(connection, View, view.c.id.in_(ids))}


def named(connection: Connection, board_key: str, name: str) -> View | None:
    """Return the view of a name of a board whose file is there, or None."""
    return found(View, connection.execute(_NAMED, {"of_key": board_key, "of_name": name}))


def of_board(connection: Connection, board_key: str) -> list[View]:
    """Return the views of a board, in the order in which they came."""
    return listed(connection, View, view.c.board_key == board_key)


def count_of_board(connection: Connection, board_key: str) -> int:
    """Return how many views a board has."""
    return connection.scalar(_COUNT_OF_BOARD, {"of_key": board_key}) or 0


def removable(connection: Connection, ids: Collection[int]) -> list[View]:
    """Return those of these views that may go: their board is decided, and no call of theirs is open."""
    undecided = exists().where(board.c.key == view.c.board_key, board.c.state.in_(UNDECIDED))
    of_call = exists().where(
        board.c.key == view.c.board_key, call.c.board_id == board.c.id, call.c.verification_id.is_(None)
    )
    shown = exists().where(call.c.view_id == view.c.id, call.c.verification_id.is_(None))
    return listed(connection, View, view.c.id.in_(ids), view.c.removed_us.is_(None), ~undecided, ~of_call, ~shown)


def expired(
    connection: Connection, verdict: Verdict | None, before_us: int | None, now_us: int, *, after_id: int, limit: int
) -> list[View]:
    """Return views of boards with a verdict that were decided before a time, if any, and whose calls are all answered.

    None stands for boards that were aborted, and were accepted before that time. The oldest after `after_id` come
    first; views that are still needed for other reasons are among them.
    """
    query = select(view).join(board, board.c.key == view.c.board_key)
    query = query.where(view.c.removed_us.is_(None), _over(verdict, before_us, now_us), _after(after_id))
    return records(View, connection.execute(query.order_by(view.c.id).limit(limit)))


def without_pictures(
    connection: Connection, verdict: Verdict | None, before_us: int | None, now_us: int, *, limit: int
) -> list[int]:
    """Return the ids of boards, as `expired` looks at them, that have no picture any more."""
    left = exists().where(view.c.board_key == board.c.key, view.c.removed_us.is_(None))
    return list(connection.scalars(select(board.c.id).where(_over(verdict, before_us, now_us), ~left).limit(limit)))


def swept(connection: Connection, board_ids: Collection[int], now_us: int) -> None:
    """Note that boards have no pictures any more, so that `expired` need not look at them again."""
    change(connection, board, board.c.id.in_(board_ids), swept_us=now_us)


def _over(verdict: Verdict | None, before_us: int | None, now_us: int) -> ColumnElement[bool]:
    if verdict is None:
        which, moment_us = board.c.state == BoardState.ABORTED, board.c.accepted_us
    else:
        which, moment_us = and_(board.c.state == BoardState.VERIFIED, board.c.verdict == verdict), board.c.decided_us
    which = and_(board.c.swept_us.is_(None), which)
    return which if before_us is None else _before(before_us, now_us, moment_us, board.c.accepted_us, which)


def _before(
    before_us: int,
    now_us: int,
    moment_us: ColumnElement[int],
    came_us: ColumnElement[int],
    which: ColumnElement[bool],
    since_us: int = 0,
) -> ColumnElement[bool]:
    """Return whether a row, which came at a time, is one of `which`, and its moment is from one time on before another.

    A moment of a clock that was not set yet, as 1970, or is to come, as of a clock that was ahead, tells nothing: the
    row is as old as the next one that came at a time between, and it may have come before `since_us`.
    """
    if before_us < CLOCK_US:
        return and_(which, moment_us >= since_us, moment_us < before_us)
    newest = came_us.table.alias()
    time_us = newest.c[came_us.name]
    known = select(newest.c.id).where(time_us >= CLOCK_US, time_us < before_us).order_by(time_us.desc()).limit(1)
    row_id: ColumnElement[int] = came_us.table.c.id
    is_older = row_id + 0 < known.scalar_subquery()  # see `_after`
    spans = (
        and_(moment_us >= max(since_us, CLOCK_US), moment_us < before_us),
        and_(moment_us < CLOCK_US, is_older),
        and_(moment_us > now_us, is_older),
    )
    # Each query finds its rows by an index; one for all spans would read every row.
    rows = union_all(*(select(row_id).where(which, span).correlate(None) for span in spans))
    return row_id.in_(rows)


def _after(id: int) -> ColumnElement[bool]:
    # The sum with 0 keeps SQLite from reading all views in the order of their ids: the other conditions narrow the
    # search more.
    return view.c.id + 0 > id


def orphans(
    connection: Connection, before_us: int, now_us: int, *, since_us: int = 0, after_id: int = 0, limit: int = 1000
) -> list[View]:
    """Return views without a board that came between two times, the oldest after `after_id` first."""
    came_us, is_kept = view.c.received_us, view.c.removed_us.is_(None)
    query = (
        select(view)
        .where(_before(before_us, now_us, came_us, came_us, is_kept, since_us), _after(after_id))
        .where(~exists().where(board.c.key == view.c.board_key))
        .order_by(view.c.id + 0)
        .limit(limit)
    )
    return records(View, connection.execute(query))


def known(connection: Connection, names: Collection[str]) -> set[str]:
    """Return those of these files that belong to a view."""
    return set(connection.scalars(select(view.c.file).where(view.c.file.in_(names), view.c.removed_us.is_(None))))


def removed(connection: Connection, ids: Collection[int], now_us: int) -> None:
    """Note that files of views are removed; rows that no call refers to go, too: a board has hundreds."""
    called = exists().where(call.c.view_id == view.c.id)
    connection.execute(delete(view).where(view.c.id.in_(ids), ~called))
    change(connection, view, view.c.id.in_(ids), removed_us=now_us)
