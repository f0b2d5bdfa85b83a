"""Search for boards, the newest first.

Every search has an index. For a blind reader a blind audit counts as the call that it seems to be: what is found is
what this reader would find by looking at every board, and no search tells an audit from a call.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, String, cast, func, select, tuple_, union_all

from coe.core import Verdict
from coe.serve.database.board_rows import OF_SERIALS
from coe.serve.database.row_types import records
from coe.serve.database.tables import Board, board, call
from coe.serve.enums import BoardState, CallKind
from coe.spelling import composed


@dataclass(frozen=True, slots=True)
class _Way:
    """One of the ways in which a board can look as it is searched.

    `by_audits` says that its audits make it look so: they are few, and their index narrows the search, so no index of
    boards, which would lead through all boards, must be tempting.
    """

    conditions: tuple[ColumnElement[bool], ...] = ()
    by_audits: bool = False


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


def find(
    connection: Connection, asked: BoardFilter, *, limit: int, after: Board | None = None, is_blind: bool = False
) -> list[Board]:
    """Return the newest boards of a filter, or those that come after a board.

    They are ordered by the time of their acceptance and by id, neither of which changes, so that no board comes twice
    and none is left out from page to page. Boards are as they are; `role_views.boards_of` shows them to a reader.
    """
    always = _conditions(asked, is_blind)
    if after is not None:
        always.append(tuple_(board.c.accepted_us, board.c.id) < (after.accepted_us, after.id))
    ways = itertools.product(_verdicts(asked.verdict, is_blind), _states(asked.state, is_blind))
    parameters = {} if asked.serial is None else {"serials": [composed(asked.serial)]}
    found: list[Board] = []
    # Each way ends at the limit by its own index; one statement with OR would sort all that it finds.
    for verdict, state in ways:
        query = select(*Board.columns).where(*always, *verdict.conditions, *state.conditions)
        by_audits = verdict.by_audits or state.by_audits
        at_us = board.c.accepted_us + 0 if by_audits else board.c.accepted_us
        query = query.order_by(at_us.desc(), board.c.id.desc()).limit(limit)
        found += records(Board, connection.execute(query, parameters))
    return sorted(found, key=lambda one: (one.accepted_us, one.id), reverse=True)[:limit]


def _conditions(asked: BoardFilter, is_blind: bool) -> list[ColumnElement[bool]]:
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
        is_named = call.c.component == composed(asked.component)
        called = select(call.c.board_id).where(is_named, call.c.kind == CallKind.DEFECT)
        found.append(board.c.id.in_(union_all(called, *_audits(is_named)) if is_blind else called))
    return found


def _verdicts(verdict: Verdict | None, is_blind: bool) -> list[_Way]:
    """Return the ways in which a board can have a verdict: it is the worst of its own and of those of its audits."""
    if verdict is None:
        return [_Way()]
    if not is_blind:
        return [_Way((board.c.verdict == verdict,))]
    # As `blind.masked` says, an audit without a face seems to be in doubt.
    face = func.coalesce(call.c.face["verdict"].as_string(), Verdict.REVIEW.value)
    worse = [one.value for one in Verdict if one.severity > verdict.severity]
    is_not_worse = ~_is_audited(face.in_(worse))
    ways = [_Way((board.c.verdict == verdict, is_not_worse))]
    raised = _is_audited(face == verdict.value)
    less = (one for one in Verdict if one.severity < verdict.severity)
    return ways + [_Way((_unindexed(board.c.verdict, one), raised, is_not_worse), by_audits=True) for one in less]


def _states(state: BoardState | None, is_blind: bool) -> list[_Way]:
    """Return the ways in which a board can have a state: with an open audit it seems to wait for an answer."""
    if state is None:
        return [_Way()]
    has_state, is_open = board.c.state == state, _is_audited(call.c.verification_id.is_(None))
    if is_blind and state is BoardState.VERIFIED:
        return [_Way((has_state, ~is_open))]
    ways = [_Way((has_state,))]
    if is_blind and state is BoardState.DECIDED:
        ways.append(_Way((_unindexed(board.c.state, BoardState.VERIFIED), is_open), by_audits=True))
    return ways


def _unindexed(column: Any, word: StrEnum) -> ColumnElement[bool]:
    """Return the condition that a column has a word, which no index answers."""
    return func.coalesce(cast(column, String), "") == word.value


def _is_audited(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a board seems to have a call that is a blind audit of a kind."""
    return board.c.id.in_(union_all(*_audits(condition)))


def _audits(condition: ColumnElement[bool]) -> list[Select[Any]]:
    return [
        select(call.c.board_id).where(call.c.kind == CallKind.AUDIT, call.c.board_id.is_not(None), condition),
        select(call.c.shown_board_id).where(
            call.c.kind == CallKind.SEEDED, call.c.shown_board_id.is_not(None), condition
        ),
    ]
