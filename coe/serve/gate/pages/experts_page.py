"""Experts as their page shows them: memory, use, and how far people agree with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coe.serve.database.hourly import CallCount
from coe.serve.database.tables import Tally
from coe.serve.enums import Outcome
from coe.serve.statistics import number


@dataclass(frozen=True, slots=True)
class InMemory:
    """What the line says of an expert: the bytes of its weights, and the devices on which it is resident.

    `rules` and `estimated` are the probability that an image needs it, by the rules and by the images that came.
    `exam` holds (item, passed, shown, at most, is blind) for each item of its exam, `notes` sentences beside it.
    """

    bytes: int
    devices: Sequence[str]
    rules: float | None
    estimated: float | None
    exam: Sequence[tuple[str, int, int, float, bool]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """An expert: its findings, those on components that are not OK, and what people said of its calls.

    `memory` is None if no line has it open. `agreement` is the share of its answered calls in which people saw a
    defect; None without answers.
    """

    name: str
    memory: InMemory | None
    findings: int
    called: int
    mean_score: float | None
    confirmed: int
    false_calls: int
    open: int
    agreement: float | None


def rows(tallies: Sequence[Tally], calls: Sequence[CallCount], in_memory: Mapping[str, Any] | None) -> list[ExpertRow]:
    """Return the experts that were used or that a line has open, the most used first."""
    experts = {name: InMemory(**facts) for name, facts in (in_memory or {}).items()}
    used: dict[str, list[Tally]] = defaultdict(list)
    asked: dict[str, list[CallCount]] = defaultdict(list)
    for tally in tallies:
        used[tally.expert].append(tally)
    for call in calls:
        asked[call.expert].append(call)
    names = [name for name in used.keys() | experts.keys() if name]
    listed = [_row(name, used[name], asked[name], experts.get(name)) for name in names]
    return sorted(listed, key=lambda row: (-row.findings, row.name))


def _row(name: str, used: Sequence[Tally], asked: Sequence[CallCount], memory: InMemory | None) -> ExpertRow:
    findings = sum(tally.findings for tally in used)
    real = number(asked, Outcome.CONFIRMED, Outcome.ACCEPTED)
    false = number(asked, Outcome.FALSE_CALL)
    return ExpertRow(
        name=name,
        memory=memory,
        findings=findings,
        called=sum(tally.called for tally in used),
        mean_score=sum(tally.score_sum for tally in used) / findings if findings else None,
        confirmed=real,
        false_calls=false,
        open=number(asked, None),
        agreement=real / (real + false) if real + false else None,
    )
