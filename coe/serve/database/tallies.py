"""Counts of findings by hour, recipe, component, expert and label. Law: they grow in the transaction of a decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from coe.serve.database.rows import records
from coe.serve.database.schema import tally

_KEY = ("hour_us", "recipe_id", "component", "expert", "label")
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
    if not tallies:
        return
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(tally)
    grown = {name: tally.c[name] + statement.excluded[name] for name in _SUMS}
    # In one order, so that two writers never wait for each other's rows.
    rows = sorted(together(tallies), key=lambda one: [getattr(one, name) for name in _KEY])
    connection.execute(
        statement.on_conflict_do_update(index_elements=list(_KEY), set_=grown),
        [{name: getattr(one, name) for name in (*_KEY, *_SUMS)} for one in rows],
    )


def together(tallies: Iterable[Tally]) -> list[Tally]:
    """Return tallies with those of one key added up."""
    sums: dict[tuple[Any, ...], Tally] = {}
    for one in tallies:
        key = tuple(getattr(one, name) for name in _KEY)
        before = sums.get(key)
        if before is not None:
            one = Tally(*key, *(getattr(before, name) + getattr(one, name) for name in _SUMS))  # noqa: PLW2901
        sums[key] = one
    return list(sums.values())


def between(connection: Connection, start_us: int, end_us: int, *, recipe_ids: Sequence[int] = ()) -> list[Tally]:
    """Return the tallies of the hours that begin from `start_us` on and before `end_us`, in the order of their keys.

    `recipe_ids` are the versions that count; none means all.
    """
    query = select(tally).where(tally.c.hour_us >= start_us, tally.c.hour_us < end_us)
    if recipe_ids:
        query = query.where(tally.c.recipe_id.in_(recipe_ids))
    return records(Tally, connection.execute(query.order_by(*(tally.c[name] for name in _KEY))))
