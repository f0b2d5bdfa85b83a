"""What happened to boards, calls and findings, by the hour: whole hours from counts, parts of hours from rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, and_, cast, func, literal, null, select, true, union_all

from coe.core import Verdict
from coe.serve.clock import HOUR_US, hour_of
from coe.serve.database import counts
from coe.serve.database.row_types import add_up, records, total
from coe.serve.database.tables import (
    Tally,
    board,
    board_count,
    call,
    call_count,
    decision_count,
    escape,
    recipe,
    tally,
    verification,
)
from coe.serve.enums import By, Dimension, Outcome


@dataclass(frozen=True, slots=True)
class Window:
    """The time that counts, from `start_us` on and before `end_us`; of one recipe if `recipe` names it."""

    start_us: int
    end_us: int
    recipe: str = ""

    @property
    def whole_hours(self) -> tuple[int, int]:
        """The beginning of the first whole hour, and the end of the last; the same if there is none."""
        first = hour_of(self.start_us - 1) + HOUR_US
        return first, max(first, hour_of(self.end_us))


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
    numbers = ("boards", "clean", "late", "verified", "good")
    kept = select(board_count).where(_in_whole_hours(window, board_count.c.hour_us), board_count.c.boards > 0)
    rows = union_all(kept, *(counts.of_boards(which) for which in _in_parts_of_hours(window))).subquery()
    query = (
        select(rows.c.hour_us, rows.c.recipe_id, *(total(rows.c[name]) for name in numbers))
        .where(rows.c.first_pass, of_recipe(window.recipe, rows.c.recipe_id))
        .group_by(rows.c.hour_us, rows.c.recipe_id)
        .order_by(rows.c.hour_us, rows.c.recipe_id)
    )
    return records(BoardCount, connection.execute(query))


def call_counts(
    connection: Connection, window: Window, *, by: Collection[Dimension] = tuple(Dimension)
) -> list[CallCount]:
    """Return the counts of calls on first passes, told apart by `by` and outcome."""
    kept = select(call_count).where(_in_whole_hours(window, call_count.c.hour_us), call_count.c.calls > 0)
    parts = (counts.of_calls(which) for which in _in_parts_of_hours(window))
    rows = union_all(kept, *parts).subquery()
    unknown: dict[Dimension, ColumnElement[Any]] = {
        Dimension.HOUR: literal(0),
        Dimension.RECIPE: cast(null(), BigInteger),
    }
    told = [rows.c[name] if name in by else unknown.get(name, literal("")).label(name) for name in Dimension]
    key = [rows.c[name] for name in Dimension if name in by] + [rows.c.outcome]
    query = (
        select(*told, rows.c.outcome, total(rows.c.calls))
        .where(of_recipe(window.recipe, rows.c.recipe_id))
        .group_by(*key)
    )
    return [
        CallCount(**{**row._mapping, "outcome": Outcome(row.outcome) if row.outcome else None})
        for row in connection.execute(query)
    ]


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


def decided(connection: Connection) -> dict[Verdict, int]:
    """Return how many boards have been decided, by their verdict; all passes count."""
    query = select(board_count.c.verdict, total(board_count.c.boards)).group_by(board_count.c.verdict)
    return {verdict: number for verdict, number in connection.execute(query) if number}


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


def _in_whole_hours(window: Window, hour_us: ColumnElement[int]) -> ColumnElement[bool]:
    first_us, end_us = window.whole_hours
    return and_(hour_us >= first_us, hour_us < end_us)


def _in_parts_of_hours(window: Window) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that a board was decided in a part of an hour at the beginning, or the end, of a window."""
    first_us, end_us = window.whole_hours
    moment = board.c.decided_us
    if window.start_us < first_us:
        yield and_(moment >= window.start_us, moment < min(first_us, window.end_us))
    if first_us <= end_us < window.end_us:
        yield and_(moment >= end_us, moment < window.end_us)


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
