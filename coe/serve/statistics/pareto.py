"""Which components, experts, labels or places cause most calls (Pareto). The shares add up to the whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from coe.serve.database.hourly import CallCount
from coe.serve.enums import By, CallKind, Outcome

DEFINITION = "calls of first passes by {by}, the most frequent first; cumulative = share of this row and those before"


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


def pareto(calls: Sequence[CallCount], by: By, *, is_blind: bool = False) -> list[Bar]:
    """Return the bars, the most calls first; bars of one size in the order of their names.

    Blind audits count while they are open, and for who answers calls blindly (`is_blind`) also afterwards: without them
    the figure would tell which they are.
    """
    counts: dict[str, dict[Outcome | None, int]] = defaultdict(lambda: defaultdict(int))
    for count in calls:
        if count.kind is CallKind.DEFECT or count.outcome is None or is_blind:
            counts[by.of(count)][count.outcome] += count.calls
    total = sum(sum(outcomes.values()) for outcomes in counts.values())
    bars, so_far = [], 0
    for name, outcomes in sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        number = sum(outcomes.values())
        so_far += number
        bars.append(
            Bar(
                name,
                number,
                outcomes[Outcome.CONFIRMED],
                outcomes[Outcome.FALSE_CALL],
                outcomes[Outcome.ACCEPTED],
                outcomes[None],
                so_far / total,
            )
        )
    return bars
