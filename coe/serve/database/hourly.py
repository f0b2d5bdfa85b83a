"""What happened to boards, calls and findings within a time, counted from their rows.

First passes alone have figures, because a board that comes back from repair says nothing about the process. The hour is
that of the board's decision, so that a call counts where its board does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from coe.core import Verdict
from coe.serve.clock import hour_of
from coe.serve.database.row_types import records
from coe.serve.database.tables import HOUR, board, call, decision_count, escape, recipe, verification
from coe.serve.enums import BoardState, By, Dimension, Outcome


@dataclass(frozen=True, slots=True)
class Window:
    """The time that counts, from `start_us` on and before `end_us`; of one recipe if `recipe` names it."""

    start_us: int
    end_us: int
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class BoardCount:
    """Boards that were decided in an hour: all; without calls; late; fully verified; and of those, without a defect.

    `calls` is the number of all their calls.
    """

    hour_us: int
    recipe_id: int
    boards: int
    clean: int
    late: int
    verified: int
    good: int
    calls: int


@dataclass(frozen=True, slots=True)
class CallCount:
    """How many calls have these values. `outcome` is None while they are open.

    `label` is that of the person if the person gave one, else that of the expert. A value that a query did not tell
    apart is 0, None or empty.
    """

    recipe_id: int | None
    component: str
    expert: str
    label: str
    outcome: Outcome | None
    calls: int
    refdes: str = ""
    feeder: str = ""


def board_counts(connection: sa.Connection, window: Window) -> list[BoardCount]:
    """Return the counts of boards by hour and recipe, in this order."""
    number, key = sa.func.count(), (HOUR.label("hour_us"), board.c.recipe_id)
    is_verified = board.c.state == BoardState.VERIFIED
    # Few boards are defective: to look for them from their calls is faster than to look for the calls of all boards.
    defective = (
        sa.select(*key, sa.func.count(board.c.id.distinct()).filter(is_verified).label("boards"))
        .select_from(call)
        .join(board, board.c.id == call.c.board_id)
        .join(verification, verification.c.id == call.c.verification_id)
        .where(*_opened_in(window), verification.c.outcome == Outcome.CONFIRMED)
    )
    query = sa.select(
        *key,
        number.label("boards"),
        # A board may be REVIEW as a whole, without a call.
        number.filter(board.c.calls == 0, board.c.verdict == Verdict.OK).label("clean"),
        number.filter(board.c.late).label("late"),
        number.filter(is_verified).label("verified"),
        sa.func.sum(board.c.calls).label("calls"),
    ).where(*decided_in(window), board.c.pass_number == 1)
    bad = {row[:2]: row.boards for row in connection.execute(defective.group_by(*key))}
    rows = connection.execute(query.group_by(*key).order_by(*key))
    return [BoardCount(**row._mapping, good=row.verified - bad.get(row[:2], 0)) for row in rows]


def _opened_in(window: Window) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of calls on first passes that were decided within a window: a decision opens its calls."""
    is_within = (call.c.opened_us >= window.start_us, call.c.opened_us < window.end_us)
    return *is_within, board.c.pass_number == 1, of_recipe(window.recipe, board.c.recipe_id)


def decided_in(window: Window) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a board was decided within a window, for the index by hour."""
    start_us, end_us, moment, hour = window.start_us, window.end_us, board.c.decided_us, HOUR
    is_within = (hour >= hour_of(start_us), hour <= end_us, moment >= start_us, moment < end_us)
    return *is_within, of_recipe(window.recipe, board.c.recipe_id)


def call_counts(connection: sa.Connection, window: Window, *, by: Collection[Dimension]) -> list[CallCount]:
    """Return the counts of calls on first passes, told apart by `by` and outcome."""
    columns: dict[Dimension, tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]] = {
        Dimension.RECIPE: (board.c.recipe_id, sa.cast(sa.null(), sa.BigInteger)),
        Dimension.COMPONENT: (call.c.component, sa.literal("")),
        Dimension.EXPERT: (call.c.expert, sa.literal("")),
        Dimension.LABEL: (sa.func.coalesce(sa.func.nullif(verification.c.label, ""), call.c.label), sa.literal("")),
        Dimension.REFDES: (call.c.refdes, sa.literal("")),
    }
    told = [columns[name][name not in by].label(name) for name in Dimension]
    query = (
        sa.select(*told, verification.c.outcome, sa.func.count().label("calls"))
        .select_from(call)
        .join(board, board.c.id == call.c.board_id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(*_opened_in(window))
        .group_by(*(columns[name][0] for name in Dimension if name in by), verification.c.outcome)
    )
    return records(CallCount, connection.execute(query))


def calls_by(connection: sa.Connection, window: Window, by: By) -> list[CallCount]:
    """Return the counts of calls on first passes by what they have in common; feeders are those of their recipes."""
    if by is not By.FEEDER:
        return call_counts(connection, window, by=[Dimension.REFDES if by is By.UNIT else Dimension(by.value)])
    counted = call_counts(connection, window, by=[Dimension.RECIPE, Dimension.REFDES])
    contents = sa.select(recipe.c.id, recipe.c.content).where(recipe.c.id.in_({one.recipe_id for one in counted}))
    feeders = {row.id: row.content.get("feeders") or {} for row in connection.execute(contents)}
    return [replace(one, feeder=feeders[one.recipe_id].get(By.REFDES.of(one), "")) for one in counted]


def decisions(connection: sa.Connection) -> dict[Verdict, int]:
    """Return how many decisions there were of each verdict, as they were made: amendments leave them as they are."""
    rows = connection.execute(sa.select(decision_count.c.verdict, decision_count.c.boards))
    return {row.verdict: row.boards for row in rows}


def escapes_of(connection: sa.Connection, window: Window) -> int:
    """Return how many escapes were first reported within a window; several reports of one defect are one."""
    defect = (escape.c.board_id, escape.c.serial, escape.c.refdes, escape.c.component, escape.c.label)
    first = sa.select(sa.func.min(escape.c.reported_us).label("at_us")).group_by(*defect)
    if window.recipe:
        first = first.join(board, board.c.id == escape.c.board_id).where(of_recipe(window.recipe, board.c.recipe_id))
    reported = first.subquery()
    query = sa.select(sa.func.count()).where(reported.c.at_us >= window.start_us, reported.c.at_us < window.end_us)
    return connection.scalar(query) or 0


def of_recipe(name: str, recipe_id: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that an id is that of a version of a recipe; without a name, of any."""
    # The sum with 0 keeps SQLite from reading all boards of the recipe by its index: the time narrows the search more.
    return (recipe_id + 0).in_(sa.select(recipe.c.id).where(recipe.c.name == name)) if name else sa.true()
