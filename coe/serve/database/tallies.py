"""Counts of findings by hour, recipe, component, expert and label. They grow in the transaction of a decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, literal, select

from coe.serve.database.row_types import add_up, records, total
from coe.serve.database.tables import tally
from coe.serve.enums import Dimension

_SUMS = ("findings", "called", "score_sum", "score_square_sum")


@dataclass(frozen=True, slots=True)
class Tally:
    """How often, in an hour, an expert said a label of a component type, and the sums of its scores and their squares.

    `called` counts the findings of components that are not OK.
    """

    hour_us: int
    recipe_id: int
    component: str
    expert: str
    label: str
    findings: int
    called: int
    score_sum: float
    score_square_sum: float


def add(connection: Connection, tallies: Sequence[Tally]) -> None:
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


def between(
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
