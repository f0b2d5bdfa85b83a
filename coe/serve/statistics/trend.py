"""Figures over time, and which components, experts, labels or places cause most calls (Pareto).

A time without boards, or with too many calls that nobody has answered, is a gap, not a zero. The shares of a Pareto add
up to the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coe.serve.clock import DAY_US, HOUR_US
from coe.serve.database.hourly import BoardCount, CallCount
from coe.serve.enums import By, Outcome
from coe.serve.statistics import yields

DEFINITION = "figures of first passes by the hour, or by the day (UTC) if there are more than 72 hours"
PARETO_DEFINITION = (
    "calls of first passes by {by}, the most frequent first; cumulative = share of this row and those before"
)
_MOST_HOURS = 72


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """What was counted within `length_us` from `start_us` on; shares in 0..1, None where nothing was counted."""

    start_us: int
    length_us: int
    boards: int
    late: int
    calls: int
    opportunities: int
    raw_fpy: float | None
    final_fpy: float | None
    false_call_ppm: float | None
    dpmo: float | None


def trend(
    boards: Sequence[BoardCount], calls: Sequence[CallCount], of_recipe: Mapping[int, int], start_us: int, end_us: int
) -> list[TrendPoint]:
    """Return the points of a time, the oldest first; `of_recipe` are the opportunities of a recipe's board."""
    length_us = HOUR_US if end_us - start_us <= _MOST_HOURS * HOUR_US else DAY_US
    boards_at: dict[int, list[BoardCount]] = defaultdict(list)
    calls_at: dict[int, list[CallCount]] = defaultdict(list)
    for board in boards:
        boards_at[board.hour_us // length_us].append(board)
    for call in calls:
        calls_at[call.hour_us // length_us].append(call)
    slots = range(start_us // length_us, -(-end_us // length_us))
    return [_point(slot * length_us, length_us, boards_at[slot], calls_at[slot], of_recipe) for slot in slots]


def _point(
    start_us: int,
    length_us: int,
    boards: Sequence[BoardCount],
    calls: Sequence[CallCount],
    of_recipe: Mapping[int, int],
) -> TrendPoint:
    decided = sum(count.boards for count in boards)
    final = yields.final_fpy(boards).value
    total = yields.opportunities(boards, of_recipe)
    return TrendPoint(
        start_us=start_us,
        length_us=length_us,
        boards=decided,
        late=sum(count.late for count in boards),
        calls=yields.number(calls),
        opportunities=total,
        raw_fpy=sum(count.clean for count in boards) / decided if decided else None,
        final_fpy=final / 100 if final is not None else None,
        false_call_ppm=yields.false_calls(calls, total).value,
        dpmo=yields.defects(calls, total).value,
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """The calls of a component, expert, label or place by what people said; `cumulative` is a share in 0..1."""

    name: str
    calls: int
    confirmed: int
    false_calls: int
    accepted: int
    open: int
    cumulative: float


def pareto(calls: Sequence[CallCount], by: By) -> list[Bar]:
    """Return the bars, the most calls first; bars of one size in the order of their names."""
    counts: dict[str, dict[Outcome | None, int]] = defaultdict(lambda: defaultdict(int))
    for count in calls:
        counts[by.of(count)][count.outcome] += count.calls
    total = sum(sum(outcomes.values()) for outcomes in counts.values())
    bars, so_far = [], 0
    for name, outcomes in sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        number = sum(outcomes.values())
        so_far += number
        confirmed, false, accepted = (outcomes[one] for one in Outcome)
        bars.append(Bar(name, number, confirmed, false, accepted, outcomes[None], so_far / total))
    return bars
