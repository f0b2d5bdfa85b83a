"""What happened to boards, calls and findings within a time, counted from their rows.

First passes alone have figures, because a board that comes back from repair says nothing about the process. The hour is
that of the board's decision, so that a call counts where its board does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    null,
    select,
    true,
)

from coe.core import Verdict
from coe.serve.clock import hour_of
from coe.serve.database.row_types import add_up, records, total
from coe.serve.database.tables import Tally, board, call, decision_count, escape, recipe, tally, verification
from coe.serve.enums import BoardState, By, Dimension, Outcome


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
    """How many calls have these values. `outcome` is None while they are open.

    `label` is that of the person if the person gave one, else that of the expert. A value that a query did not tell
    apart is 0, None or empty.
    """

    hour_us: int
    recipe_id: int | None
    component: str
    expert: str
    label: str
    outcome: Outcome | None
    calls: int
    refdes: str = ""
    feeder: str = ""


def board_counts(connection: Connection, window: Window) -> list[BoardCount]:
    """Return the counts of boards by hour and recipe, in this order."""

    def number(condition: ColumnElement[bool]) -> ColumnElement[Any]:
        return func.sum(case((condition, 1), else_=0))

    is_verified = board.c.state == BoardState.VERIFIED
    is_defective = exists().where(
        call.c.board_id == board.c.id,
        verification.c.id == call.c.verification_id,
        verification.c.outcome == Outcome.CONFIRMED,
    )
    key = (hour_of(board.c.decided_us).label("hour_us"), board.c.recipe_id)
    query = select(
        *key,
        func.count().label("boards"),
        # A board may be REVIEW as a whole, without a call.
        number(and_(board.c.calls == 0, board.c.verdict == Verdict.OK)).label("clean"),
        number(board.c.late).label("late"),
        number(is_verified).label("verified"),
        # A verified board without calls has no defect: its calls need not be looked for.
        number(and_(is_verified, (board.c.calls == 0) | ~is_defective)).label("good"),
    )
    query = query.where(*_first_passes(window)).group_by(*key).order_by(*key)
    return records(BoardCount, connection.execute(query))


def call_counts(
    connection: Connection, window: Window, *, by: Collection[Dimension] = tuple(Dimension)
) -> list[CallCount]:
    """Return the counts of calls on first passes, told apart by `by` and outcome."""
    columns: dict[Dimension, tuple[ColumnElement[Any], ColumnElement[Any]]] = {
        Dimension.HOUR: (hour_of(board.c.decided_us), literal(0)),
        Dimension.RECIPE: (board.c.recipe_id, cast(null(), BigInteger)),
        Dimension.COMPONENT: (call.c.component, literal("")),
        Dimension.EXPERT: (call.c.expert, literal("")),
        Dimension.LABEL: (func.coalesce(func.nullif(verification.c.label, ""), call.c.label), literal("")),
    }
    told = [columns[name][name not in by].label(name) for name in Dimension]
    query = (
        select(*told, verification.c.outcome, func.count().label("calls"))
        .select_from(board)
        .join(call, call.c.board_id == board.c.id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(*_first_passes(window), board.c.calls > 0)
        .group_by(*(columns[name][0] for name in Dimension if name in by), verification.c.outcome)
    )
    return records(CallCount, connection.execute(query))


def place_counts(connection: Connection, window: Window) -> list[CallCount]:
    """Return the counts of calls on first passes by refdes, with the feeders that their recipes name."""
    query = (
        select(board.c.recipe_id, call.c.refdes, verification.c.outcome, func.count().label("calls"))
        .join(board, board.c.id == call.c.board_id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(call.c.opened_us >= window.start_us, call.c.opened_us < window.end_us, board.c.pass_number == 1)
        .where(of_recipe(window.recipe, board.c.recipe_id))
        .group_by(board.c.recipe_id, call.c.refdes, verification.c.outcome)
    )
    rows = connection.execute(query).all()
    contents = select(recipe.c.id, recipe.c.content).where(recipe.c.id.in_({row.recipe_id for row in rows}))
    feeders = {row.id: row.content.get("feeders") or {} for row in connection.execute(contents)}
    return [
        CallCount(
            0, row.recipe_id, "", "", "", row.outcome, row.calls, row.refdes,
            feeders[row.recipe_id].get(By.REFDES.of(row), ""),
        )
        for row in rows
    ]  # fmt: skip


def decisions(connection: Connection) -> dict[Verdict, int]:
    """Return how many decisions there were of each verdict, as they were made: amendments leave them as they are."""
    rows = connection.execute(select(decision_count.c.verdict, decision_count.c.boards))
    return {row.verdict: row.boards for row in rows}


def escapes_of(connection: Connection, window: Window) -> int:
    """Return how many escapes were first reported within a window; of a recipe, those whose board is known.

    Several tests may report one defect, which is one escape.
    """
    defect = (escape.c.board_id, escape.c.serial, escape.c.refdes, escape.c.component, escape.c.label)
    first = select(func.min(escape.c.reported_us).label("at_us")).group_by(*defect)
    if window.recipe:
        first = first.join(board, board.c.id == escape.c.board_id).where(of_recipe(window.recipe, board.c.recipe_id))
    reported = first.subquery()
    query = select(func.count()).where(reported.c.at_us >= window.start_us, reported.c.at_us < window.end_us)
    return connection.scalar(query) or 0


def _first_passes(window: Window) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a board was decided within a window, as its product's first pass."""
    moment = board.c.decided_us
    is_within = (moment >= window.start_us, moment < window.end_us)
    return *is_within, board.c.pass_number == 1, of_recipe(window.recipe, board.c.recipe_id)


def of_recipe(name: str, recipe_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that an id is that of a version of a recipe; without a name, of any."""
    # The sum with 0 keeps SQLite from reading all boards of the recipe by its index: the time narrows the search more.
    return (recipe_id + 0).in_(select(recipe.c.id).where(recipe.c.name == name)) if name else true()


_SUMS = ("findings", "called", "score_sum")


def add_tallies(connection: Connection, tallies: Sequence[Tally]) -> None:
    """Add to the counts; rows of the same hour, recipe, component, expert and label grow together."""
    rows = [{name: getattr(added, name) for name in (*Dimension, *_SUMS)} for added in together(tallies)]
    add_up(connection, tally, rows)


def together(tallies: Iterable[Tally]) -> list[Tally]:
    """Return tallies with those of one key added up."""
    sums: dict[tuple[Any, ...], Tally] = {}
    for added in tallies:
        key = tuple(getattr(added, name) for name in Dimension)
        before = sums.get(key)
        if before is not None:
            added = Tally(*key, *(getattr(before, name) + getattr(added, name) for name in _SUMS))  # noqa: PLW2901
        sums[key] = added
    return list(sums.values())


def tallies_between(
    connection: Connection,
    start_us: int,
    end_us: int,
    *,
    recipe_ids: Sequence[int] = (),
    by: Collection[Dimension] = tuple(Dimension),
) -> list[Tally]:
    """Return the tallies of the hours that begin from `start_us` on and before `end_us`, in the order of their keys.

    `recipe_ids` are the versions that count; none means all. Rows that differ only in columns that `by` does not name
    are added up; these columns are then 0 or empty.
    """
    unknown = {Dimension.HOUR: 0, Dimension.RECIPE: 0}
    told = [tally.c[name] if name in by else literal(unknown.get(name, "")).label(name) for name in Dimension]
    key = [tally.c[name] for name in Dimension if name in by]
    query = select(*told, *(total(tally.c[name]) for name in _SUMS)).group_by(*key).order_by(*key)
    query = query.where(tally.c.hour_us >= start_us, tally.c.hour_us < end_us)
    if recipe_ids:
        query = query.where(tally.c.recipe_id.in_(recipe_ids))
    return records(Tally, connection.execute(query))
