"""Requests under way: their findings, the experts that they wait for, their verdicts. No scheduling is done here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coe.board.router import Passed, Router
from coe.board.steps import Step
from coe.core import Failure, FailureKind, Finding, Request, Result, Stage, Verdict, worst
from coe.errors import RulesError


@dataclass(slots=True)
class _Case:
    """A request under way. `seen` holds the steps reached so far, so that a step of several branches is taken once."""

    # `order` is the rank of each expert that its component may need. A request that is NG `is_stopped` if its component
    # has `stop_at_ng`.

    request: Request
    since_s: float
    stop_at_ng: bool
    order: Mapping[str, int]
    findings: dict[str, Finding] = field(default_factory=dict)
    awaiting: dict[str, list[Step]] = field(default_factory=dict)
    seen: frozenset[Step] = frozenset()
    verdicts: tuple[Verdict, ...] = ()
    failure: Failure | None = None
    is_stopped: bool = False


class Advance(NamedTuple):
    """The consequence of an event for a request: stages to queue, and the result once no stage is awaited."""

    stages: tuple[Stage, ...] = ()
    result: Result | None = None


class Cases:
    """All requests that have arrived and have no result yet.

    A request ends when none of its stages is awaited, even if a stage has failed. So an answered request leaves nothing
    in a backlog, and its findings do not depend on which branch failed first.

    With `stop_at_ng` in the rules a request that is NG opens no further stage, and is NG even if another branch has
    failed: so its verdict does not depend on which branch came first. `decided` tells that its waiting stages may go.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._cases: dict[int, _Case] = {}

    def __len__(self) -> int:
        return len(self._cases)

    def follow(self, router: Router) -> None:
        """Take in requests by another router; it must have the rules of all requests under way."""
        self._router = router

    def awaits(self, request_id: int) -> Iterable[str]:
        """Return the experts whose findings a request awaits; none if it is not under way."""
        case = self._cases.get(request_id)
        return case.awaiting if case else ()

    def open(self, request: Request, now: float) -> Advance:
        """Take in a request. It ends at once, with an error, if the board does not have its component."""
        rule = request.rule
        try:
            first = self._router.first(rule)
        except RulesError as error:
            return self.refuse(request, Failure(FailureKind.RULES, str(error)), now)
        stop_at_ng, order = self._router.components[rule].stop_at_ng, self._router.order(rule)
        case = self._cases[request.id] = _Case(request, request.since_s(now), stop_at_ng, order)
        return self._advance(case, [first], now)

    def refuse(self, request: Request, failure: Failure, now: float) -> Advance:
        """End a request whose image could not be used."""
        return Advance(result=Result.refused(request, failure, now))

    def found(self, stage: Stage, finding: Finding, now: float) -> Advance:
        """Take in the finding of a stage."""
        case = self._cases[stage.request_id]
        case.findings[stage.expert] = finding
        return self._advance(case, case.awaiting.pop(stage.expert), now)

    def failed(self, stage: Stage, failure: Failure, now: float) -> Advance:
        """Take in the failure of a stage; the other branches of its request go on."""
        case = self._cases[stage.request_id]
        case.failure = failure
        return self.withdrawn(stage, now)

    def decided(self, request_id: int) -> bool:
        """Return whether no further finding of a request is needed, although it awaits some."""
        case = self._cases.get(request_id)
        return case is not None and case.is_stopped

    def close_decided(self, now: float) -> list[Result]:
        """End the requests that are `decided`, whatever they await."""
        return [self._close(case, now) for case in list(self._cases.values()) if case.is_stopped]

    def withdrawn(self, stage: Stage, now: float) -> Advance:
        """Await the finding of a stage no more."""
        case = self._cases[stage.request_id]
        del case.awaiting[stage.expert]
        return self._advance(case, [], now)

    def _advance(self, case: _Case, steps: list[Step], now: float) -> Advance:
        """Go through steps whose deciding findings are known, and await those that are not."""
        stages: list[Stage] = []
        while steps and not case.is_stopped:
            step = steps.pop()
            finding = case.findings.get(step.expert)
            judge = self._router.judge(step.expert, finding)
            if judge != step.expert:
                finding = case.findings.get(judge)
            if finding is not None:
                try:
                    decision = self._router.next(step, finding)
                except RulesError as error:
                    case.failure = Failure(FailureKind.RULES, str(error))
                    continue
                if decision.verdict is not None:
                    case.verdicts += (decision.verdict,)
                    case.is_stopped = case.stop_at_ng and Verdict.NG in case.verdicts
                if decision.steps:
                    steps.extend(step for step in reversed(decision.steps) if step not in case.seen)
                    case.seen = case.seen.union(decision.steps)
            elif judge in case.awaiting:
                case.awaiting[judge].append(step)
            else:
                case.awaiting[judge] = [step]
                stages.append(Stage(case.request.id, judge))
        if case.is_stopped:
            for stage in stages:
                del case.awaiting[stage.expert]
            stages.clear()
        return Advance(tuple(stages), None if case.awaiting else self._close(case, now))

    def _close(self, case: _Case, now: float) -> Result:
        del self._cases[case.request.id]
        if case.is_stopped:
            case.failure = None
        verdict = worst(case.verdicts) if case.failure is None else None
        passed = self._router.passed(case.request, case.findings) if verdict is Verdict.OK else Passed(case.findings)
        if passed.is_doubted:
            verdict = Verdict.REVIEW
        # Findings stand in the order of the rules, so that results do not depend on scheduling.
        ordered = sorted(case.findings, key=case.order.__getitem__)
        findings = self._router.named([passed.findings[expert] for expert in ordered])
        late, latency_s = now > case.request.due_s, max(0.0, now - case.since_s)
        return Result(case.request, verdict, findings, latency_s, case.failure, late, passed.accepted)
