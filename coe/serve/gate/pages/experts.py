"""How often experts are used, and how far people agree with them, as the page of experts shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from coe.serve.database.history import CallCount
from coe.serve.database.tallies import Tally
from coe.serve.statistics import yields
from coe.serve.words import Outcome


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """An expert: its findings, those on components that are not OK, and what people said of its calls.

    `agreement` is the share of its answered calls in which people saw a defect; None without answers.
    """

    name: str
    findings: int
    called: int
    mean_score: float
    confirmed: int
    false_calls: int
    open: int
    agreement: float | None


def rows(tallies: Sequence[Tally], calls: Sequence[CallCount]) -> list[ExpertRow]:
    """Return the experts, the most used first."""
    used: dict[str, list[Tally]] = defaultdict(list)
    asked: dict[str, list[CallCount]] = defaultdict(list)
    for one in tallies:
        used[one.expert].append(one)
    for call in calls:
        asked[call.expert].append(call)
    listed = [_row(name, used[name], asked[name]) for name in used if name]
    return sorted(listed, key=lambda one: (-one.findings, one.name))


def _row(name: str, used: Sequence[Tally], asked: Sequence[CallCount]) -> ExpertRow:
    findings = sum(one.findings for one in used)
    real = yields.number(asked, Outcome.CONFIRMED, Outcome.ACCEPTED)
    false = yields.number(asked, Outcome.FALSE_CALL)
    return ExpertRow(
        name=name,
        findings=findings,
        called=sum(one.called for one in used),
        mean_score=sum(one.score_sum for one in used) / findings if findings else 0.0,
        confirmed=real,
        false_calls=false,
        open=yields.number(asked, None),
        agreement=real / (real + false) if real + false else None,
    )
