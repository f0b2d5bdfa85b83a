"""Counts of boards and calls by the hour. They change in the transaction that changes what they count.

What a board adds to the counts is defined by one query over its rows. It runs before and after each change, and the
difference goes into the tables `board_count` and `call_count`; before its decision a board counts nowhere. A recount of
all rows gives the same numbers.

First passes alone have calls here, because a board that comes back from repair says nothing about the process. The hour
is that of the board's decision, so that a call counts where its board does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Result,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    select,
    type_coerce,
)

from coe.core import Verdict
from coe.serve.clock import hour_of
from coe.serve.database.row_types import add_up
from coe.serve.database.tables import board, board_count, call, call_count, verification
from coe.serve.enums import BoardState, Outcome

_Sums = Counter[tuple[tuple[Any, ...], str]]
"""Numbers by the key of their row, and the name of their column."""


@dataclass(frozen=True)
class _Counted:
    """A table of counts; `rows` makes the query that counts what the boards of a condition add to it."""

    table: Table
    rows: Callable[[ColumnElement[bool]], Select[Any]]

    @cached_property
    def key(self) -> list[str]:
        return [column.name for column in self.table.primary_key]

    @cached_property
    def numbers(self) -> list[str]:
        return [column.name for column in self.table.c if not column.primary_key]


def of_boards(which: ColumnElement[bool]) -> Select[Any]:
    """Return the query that counts the decided boards of a condition: the columns of `board_count`."""

    def number(condition: ColumnElement[bool]) -> ColumnElement[Any]:
        return func.sum(case((condition, 1), else_=0))

    is_verified = board.c.state == BoardState.VERIFIED
    is_defective = exists().where(
        call.c.board_id == board.c.id,
        verification.c.id == call.c.verification_id,
        verification.c.outcome == Outcome.CONFIRMED,
    )
    key = {
        "hour_us": hour_of(board.c.decided_us),
        "recipe_id": board.c.recipe_id,
        "first_pass": board.c.pass_number == 1,
        "verdict": board.c.verdict,
    }
    numbers = {
        "boards": func.count(),
        # A board may be REVIEW as a whole, without a call.
        "clean": number(and_(board.c.calls == 0, board.c.verdict == Verdict.OK)),
        "late": number(board.c.late),
        "verified": number(is_verified),
        "good": number(and_(is_verified, ~is_defective)),
    }
    query = select(*(column.label(name) for name, column in (key | numbers).items()))
    return query.where(board.c.decided_us.is_not(None), which).group_by(*key.values())


def of_calls(which: ColumnElement[bool]) -> Select[Any]:
    """Return the query that counts the calls on first passes of a condition: the columns of `call_count`.

    The label is that of the person if the person gave one, else that of the expert.
    """
    key = {
        "hour_us": hour_of(board.c.decided_us),
        "recipe_id": board.c.recipe_id,
        "component": call.c.component,
        "expert": call.c.expert,
        "label": func.coalesce(func.nullif(verification.c.label, ""), call.c.label),
        "outcome": func.coalesce(type_coerce(verification.c.outcome, String), ""),
    }
    return (
        select(*(column.label(name) for name, column in key.items()), func.count().label("calls"))
        .select_from(board)
        .join(call, call.c.board_id == board.c.id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(board.c.decided_us.is_not(None), board.c.pass_number == 1, which)
        .group_by(*key.values())
    )


_COUNTED = (_Counted(board_count, of_boards), _Counted(call_count, of_calls))
# Built once: to build these queries takes longer than to run them, and the line runs them at each decision.
_IS_BOARD = board.c.id == bindparam("followed_id")
_LOCK = select(board.c.id).where(_IS_BOARD).with_for_update()
_OF_BOARD = [(counted, counted.rows(_IS_BOARD)) for counted in _COUNTED]


@contextmanager
def followed(connection: Connection, board_id: int) -> Iterator[None]:
    """Keep the counts in step with what the block changes of a board; the block must be part of a transaction.

    The board is locked first, so that no other transaction changes it between the two looks, and so that two people who
    answer its last two calls at a time do not each see the other's call open. Locks are taken in one order: the board,
    its calls, tallies, events, counts.
    """
    followed = {"followed_id": board_id}
    connection.execute(_LOCK, followed)
    before = [_sums(counted, connection.execute(query, followed)) for counted, query in _OF_BOARD]
    yield
    for (counted, query), sums_before in zip(_OF_BOARD, before, strict=True):
        sums = _sums(counted, connection.execute(query, followed))
        sums.subtract(sums_before)
        _add(connection, counted, sums)


def newly_decided(connection: Connection, board_id: int) -> None:
    """Count a board that got its decision in this transaction, and counted nowhere before."""
    for counted, query in _OF_BOARD:
        _add(connection, counted, _sums(counted, connection.execute(query, {"followed_id": board_id})))


def add(connection: Connection, which: ColumnElement[bool]) -> None:
    """Count boards that were written with their calls and answers, for example a history from another system."""
    for counted in _COUNTED:
        _add(connection, counted, _sums(counted, connection.execute(counted.rows(which))))


def _sums(counted: _Counted, result: Result[Any]) -> _Sums:
    """Return what boards add to each number of a table, by key and name."""
    rows = [row._asdict() for row in result]
    return Counter(
        {(tuple(row[part] for part in counted.key), name): row[name] for row in rows for name in counted.numbers}
    )


def _add(connection: Connection, counted: _Counted, sums: _Sums) -> None:
    rows: dict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
    for (key, name), number in sums.items():
        rows[key][name] = number
    add_up(
        connection,
        counted.table,
        [dict(zip(counted.key, key, strict=True)) | numbers for key, numbers in rows.items() if any(numbers.values())],
    )
