"""What happened to boards and calls, counted by the hour. Law: the database counts; the formulas are elsewhere.

First passes alone count: a board that comes back from repair says nothing about the process. The hour is that of the
board's decision, so that a call counts where its board does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, select

from coe.core import Verdict
from coe.serve.database.rows import records
from coe.serve.database.schema import board, call, escape, recipe, verification
from coe.serve.moments import HOUR_US
from coe.serve.words import BoardState, CallKind, Outcome


@dataclass(frozen=True, slots=True)
class Window:
    """The time that counts, from `start_us` on and before `end_us`; of one recipe if `recipe` names it."""

    start_us: int
    end_us: int
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class BoardCount:
    """Boards that were decided in an hour: all; without calls; late; fully verified; and of those, without a defect."""

    hour_us: int
    recipe_id: int
    boards: int
    clean: int
    late: int
    verified: int
    good: int


@dataclass(frozen=True, slots=True)
class CallCount:
    """Calls of an hour that are alike; `outcome` is None while they are open, `recipe_id` of seeded defects.

    `label` is that of the person if the person gave one, else that of the expert.
    """

    hour_us: int
    recipe_id: int | None
    component: str
    expert: str
    label: str
    kind: CallKind
    outcome: Outcome | None
    calls: int


def _hour(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    return moment - moment % HOUR_US


def _decided(window: Window, moment: ColumnElement[Any] = board.c.decided_us) -> ColumnElement[bool]:
    """Return the condition that a board was decided within a window, in its first pass."""
    which = and_(moment >= window.start_us, moment < window.end_us, board.c.pass_number == 1)
    if window.recipe:
        which &= board.c.recipe_id.in_(select(recipe.c.id).where(recipe.c.name == window.recipe))
    return which


def board_counts(connection: Connection, window: Window) -> list[BoardCount]:
    """Return the counts of boards by hour and recipe, in this order."""
    hour = _hour(board.c.decided_us)

    def number(which: ColumnElement[bool]) -> ColumnElement[Any]:
        return func.sum(case((which, 1), else_=0))

    # A board may be REVIEW as a whole, without a call.
    is_clean = and_(board.c.calls == 0, board.c.verdict == Verdict.OK)
    is_verified = board.c.state == BoardState.VERIFIED
    is_defective = exists().where(
        call.c.board_id == board.c.id,
        verification.c.id == call.c.verification_id,
        verification.c.outcome == Outcome.CONFIRMED,
    )
    numbers = {
        "boards": func.count(),
        "clean": number(is_clean),
        "late": number(board.c.late),
        "verified": number(is_verified),
        "good": number(and_(is_verified, ~is_defective)),
    }
    query = select(hour.label("hour_us"), board.c.recipe_id, *(one.label(name) for name, one in numbers.items()))
    query = query.where(_decided(window)).group_by(hour, board.c.recipe_id).order_by(hour, board.c.recipe_id)
    return records(BoardCount, connection.execute(query))


def call_counts(connection: Connection, window: Window) -> list[CallCount]:
    """Return the counts of calls and audits on boards, and of seeded defects, which belong to no recipe.

    Of a seeded defect the first word counts: it measures the person, who may find out afterwards what it was.
    """
    label = func.coalesce(func.nullif(verification.c.label, ""), call.c.label).label("label")
    names = (call.c.component, call.c.expert, label, call.c.kind, verification.c.outcome)
    number = func.count().label("calls")
    hour = _hour(board.c.decided_us)
    of_boards = (
        select(hour.label("hour_us"), board.c.recipe_id, *names, number)
        .select_from(call)
        .join(board, board.c.id == call.c.board_id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        # No call is older than its board's decision. Few boards have calls, so the database shall begin with the calls.
        .where(call.c.opened_us >= window.start_us, _decided(window, board.c.decided_us + 0))
        .group_by(hour, board.c.recipe_id, *names)
    )
    opened = _hour(call.c.opened_us)
    seeded = (
        select(opened.label("hour_us"), call.c.board_id.label("recipe_id"), *names, number)
        .outerjoin(verification, and_(verification.c.call_id == call.c.id, verification.c.supersedes.is_(None)))
        .where(call.c.board_id.is_(None), call.c.opened_us >= window.start_us, call.c.opened_us < window.end_us)
        .group_by(opened, call.c.board_id, *names)
    )
    return records(CallCount, connection.execute(of_boards)) + records(CallCount, connection.execute(seeded))


def escapes_of(connection: Connection, window: Window) -> int:
    """Return how many escapes were reported within a window; of a recipe, those whose board is known."""
    query = select(func.count()).where(escape.c.reported_us >= window.start_us, escape.c.reported_us < window.end_us)
    if window.recipe:
        ids = select(recipe.c.id).where(recipe.c.name == window.recipe)
        query = query.join(board, board.c.id == escape.c.board_id).where(board.c.recipe_id.in_(ids))
    return connection.scalar(query) or 0
