"""A begun board, and the decision that its results give. What has no verdict of the experts is REVIEW.

Nothing unseen becomes OK. No database, no clock; one thread at a time; a crash forgets a begun board, and it is begun
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coe.board.router import Router
from coe.board.steps import Step
from coe.core import Failure, FailureKind, Finding, Result, Verdict, decided, deciding, worst
from coe.errors import RulesError
from coe.serve.clock import hour_of
from coe.serve.database.decisions import Amendment, Decision
from coe.serve.database.findings import GoodComponent
from coe.serve.database.hourly import together
from coe.serve.database.tables import Board, NewCall, Tally
from coe.serve.enums import CallReason
from coe.serve.worker.items import Item, Items, Unseen
from coe.serve.worker.product import Product

UNSEEN_BY_LINE = (FailureKind.LINE, FailureKind.STOPPED)
"""Failures of the line itself: nobody has looked at the image, so it has no result."""
_LATE = "there was no finding when the board was due"


@dataclass(slots=True, eq=False)
class BoardRun:
    """A board under inspection; `due_s` is on the monotonic clock, and infinity without a due time.

    `product` is the recipe on the line that it is inspected by; None for a board that nobody looks at.
    """

    board: Board
    items: Items
    due_s: float = math.inf
    product: Product | None = None
    is_decided: bool = False
    results: dict[str, Result] = field(default_factory=dict)
    """By refdes, those that came in time."""
    afterwards: dict[str, Result] = field(default_factory=dict)
    """Results that came after the due time, or after the decision: they may raise its severity, and are never OK."""
    late: list[Result] = field(default_factory=list)
    """Those of them that are not written yet."""

    @property
    def waiting(self) -> list[Item]:
        """The components that have no result yet."""
        return [item for item in self.items.seen if item.refdes not in self.results | self.afterwards]

    @property
    def is_complete(self) -> bool:
        """Whether every component that can be seen has its result."""
        return len(self.results) + len(self.afterwards) == len(self.items.seen)

    def take(self, refdes: str, result: Result, at_s: float) -> None:
        """Take in a component's result, which came at a time of the monotonic clock; a second one changes nothing.

        The decision may be written long after the due time, as while the database is locked. It tells what was known
        then.
        """
        if refdes in self.results or refdes in self.afterwards:
            return
        if self.is_decided or at_s >= self.due_s:
            self.afterwards[refdes] = result
            self.late.append(result)
        else:
            self.results[refdes] = result


def decision_of(run: BoardRun, now_us: int, failure: Failure | None = None) -> Decision:
    """Decide a board by what is known now: components without a result are REVIEW.

    They are late, or `failure` says why they were not inspected.
    """
    calls: list[NewCall] = []
    good: list[GoodComponent] = []
    tallies: list[Tally] = []
    for item in run.items.seen:
        result = run.results.get(item.refdes)
        if result is None:
            unjudged = (CallReason.FAILED, failure.reason) if failure else (CallReason.LATE, _LATE)
            calls.append(_review(item, *unjudged))
        elif result.verdict is Verdict.OK:
            rows = [finding.to_dict() for finding in result.findings]
            good.append(GoodComponent(item.refdes, item.component, item.view_id, item.place, rows))
        else:
            calls.append(_called(run, item, result))
        if result is not None:
            tallies += _tallies(run, item, result, now_us)
    calls += [_review(part, part.reason, part.detail) for part in run.items.unseen]
    verdict = worst([call.verdict for call in calls])
    if verdict is Verdict.OK and (run.items.reason or not run.items.number):
        verdict = Verdict.REVIEW
    return Decision(
        board=run.board,
        verdict=verdict,
        decided_us=now_us,
        late=any(call.late for call in calls),
        calls=calls,
        good=good,
        tallies=together(tallies),
        reason=run.items.reason,
    )


def amendment_of(run: BoardRun, now_us: int) -> Amendment:
    """Return what late results add to a decided board: those that are worse than REVIEW may raise its severity."""
    by_refdes = {item.refdes: item for item in run.items.seen}
    raised: list[NewCall] = []
    tallies: list[Tally] = []
    for result in run.late:
        item = by_refdes[result.request.refdes]
        tallies += _tallies(run, item, result, now_us)
        if result.verdict is Verdict.NG:
            raised.append(_called(run, item, result))
    return Amendment(run.board.id, now_us, raised, together(tallies))


def culprit(router: Router, component: str, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding with the worst consequence by the rules, the first of several; None without findings."""
    rule = router.components.get(component)
    by_expert = decided({finding.expert: finding for finding in findings})
    if rule is None:
        return None
    worst_finding, worst_severity = None, -2
    for step in rule.root.walk():
        if (finding := by_expert.get(step.expert)) is not None:
            severity = _severity(router, step, finding)
            if severity > worst_severity:
                worst_finding, worst_severity = finding, severity
    return worst_finding


def _severity(router: Router, step: Step, finding: Finding) -> int:
    """Return how severe the consequence of a finding is by itself; -1 if other experts follow."""
    try:
        verdict = router.next(step, finding).verdict
    except RulesError:  # no rule covers the label, so the component has no verdict
        return Verdict.NG.severity
    return -1 if verdict is None else verdict.severity


def _called(run: BoardRun, item: Item, result: Result) -> NewCall:
    """Return the call of a component that is not OK, or that failed."""
    finding = culprit(run.product.router, item.component, result.findings) if run.product else None
    score = finding.score if finding and math.isfinite(finding.score) else None
    return _call_of(
        item,
        result.verdict or Verdict.REVIEW,
        CallReason.EXPERT if result.failure is None else CallReason.FAILED,
        detail=result.error or (finding.doubt or finding.reading if finding else ""),
        expert=finding.expert if finding else "",
        label=finding.label if finding else "",
        score=score,
        late=result.late,
        findings=[finding.to_dict() for finding in result.findings],
    )


def _review(part: Item | Unseen, reason: CallReason, detail: str) -> NewCall:
    """Return the call of a component that no expert has judged."""
    return _call_of(part, Verdict.REVIEW, reason, detail=detail, late=reason is CallReason.LATE)


def _call_of(part: Item | Unseen, verdict: Verdict, reason: CallReason, **more: Any) -> NewCall:
    where: dict[str, Any] = {"view_id": part.view_id, "place": part.place}
    return NewCall(part.refdes, part.component, verdict, reason, **where, **more)


def _tallies(run: BoardRun, item: Item, result: Result, now_us: int) -> Iterator[Tally]:
    called = int(result.verdict is not Verdict.OK)
    for finding in deciding(result.findings):
        score = finding.score if math.isfinite(finding.score) else 0.0
        key = (hour_of(now_us), run.board.recipe_id, item.component, finding.expert, finding.label)
        yield Tally(*key, 1, called, score)


def is_lost_image(result: Result, image: Path | None) -> bool:
    """Return whether the file of a picture could not be read; a disk that does not answer is not asked again."""
    if image is None or result.failure is None or not result.failure.kind.is_of_picture:
        return False
    return result.failure.kind is FailureKind.LATE or not is_file(image)


def is_file(path: Path) -> bool:
    """Return whether a file is there; on a disk that fails it is not."""
    try:
        return path.is_file()
    except OSError:
        return False
