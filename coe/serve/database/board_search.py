"""Search for boards, the newest first. Every search has an index."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, select, tuple_

from coe.core import Verdict
from coe.serve.database.board_rows import OF_SERIALS
from coe.serve.database.row_types import records
from coe.serve.database.tables import Board, board, call
from coe.serve.enums import BoardState
from coe.spelling import composed


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
