"""How experts judge pictures whose truth is known: what would pass a line by its rules, and what would be called.

The verdict of a picture is what the rules make of its expert's finding alone; a finding that leads to further experts
passes here. REVIEW counts as a call, and so does a picture that cannot be compared with its reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coe.board import photo_labels
from coe.board.rules import Rules
from coe.board.steps import Step
from coe.core import Expert, Finding, Request, Result, Verdict, worst
from coe.helpers.rates import Rate
from coe.learn.answers import BoardExperts, PictureAnswer
from coe.pictures.photographs import Photograph
from coe.results.evaluation_report import EvaluationRow, WrongPicture
from coe.store.exam import ExamItem, added, apart

_CALLS = (Verdict.NG, Verdict.REVIEW)
_MOST_SHOWN = 32
"""An exam is made from at most so many good pictures, taken evenly."""


@dataclass(frozen=True, slots=True)
class JudgedPicture:
    """A picture that was judged: the worst verdict of any component, and whether it is an escape or a false call."""

    asked: PictureAnswer
    finding: Finding
    verdict: Verdict
    escape: bool = False
    false_call: bool = False

    @property
    def is_as_labelled(self) -> bool:
        """Whether the expert says the true label, and no doubt changes the verdict: what is NG stays NG."""
        is_sure = not self.finding.doubt or self.verdict is Verdict.NG
        return is_sure and self.finding.label == self.asked.picture.label

    @property
    def said(self) -> str:
        """What is wrong with it, for people."""
        said = f"expected {self.asked.picture.label}, got {self.finding.label}"
        if self.finding.doubt:
            said += f", in doubt: {self.finding.doubt}"
        return said + (": an escape" if self.escape else ": a false call" if self.false_call else "")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one expert says of its pictures: those that were judged, the rates by component, and why others failed."""

    expert: Expert
    judged: tuple[JudgedPicture, ...]
    rows: tuple[EvaluationRow, ...]
    failed: tuple[PictureAnswer, ...]

    @property
    def wrong(self) -> list[WrongPicture]:
        """The pictures that are wrong: escapes, false calls, and then those with another label that decides alike."""
        return wrong_of((self,))


def wrong_of(evaluations: Sequence[Evaluation]) -> list[WrongPicture]:
    """Return the wrong pictures of all experts: escapes, false calls, and then those with another label."""
    wrong = [
        (one, of.expert.id)
        for of in evaluations
        for one in of.judged
        if one.escape or one.false_call or not one.is_as_labelled
    ]
    wrong.sort(key=lambda pair: (not pair[0].escape, not pair[0].false_call))
    return [
        WrongPicture(Result(Request(0, id, one.asked.picture.name), one.verdict, (one.finding,), 0.0), one.said)
        for one, id in wrong
    ]


def by_rules(board: Rules, expert: Expert, asked: Iterable[PictureAnswer]) -> Evaluation:
    """Judge what an expert says of its pictures by the rules of each component that it inspects."""
    asked = tuple(asked)
    judged = [(one, one.finding) for one in asked if one.finding is not None]
    by_component: dict[str, dict[int, _Outcome]] = {}
    for component in photo_labels.served(board.components, expert.id).values():
        steps = component.steps_of(expert.id)
        outcomes = {
            place: _outcome(board, steps, one.picture.label, said)
            for place, (one, said) in enumerate(judged)
            if one.picture.component in ("", component.name)
        }
        if outcomes:
            by_component[component.name] = outcomes
    alike: dict[tuple[tuple[int, bool, bool], ...], list[str]] = {}
    for name, outcomes in by_component.items():
        key = tuple((place, one.is_bad, one.is_called) for place, one in outcomes.items())
        alike.setdefault(key, []).append(name)
    pictures = [
        _judged(one, said, [outcomes[place] for outcomes in by_component.values() if place in outcomes])
        for place, (one, said) in enumerate(judged)
    ]
    rows = [
        _row(expert, names, [(pictures[place], bad, called) for place, bad, called in key])
        for key, names in alike.items()
    ]
    return Evaluation(expert, tuple(pictures), tuple(rows), tuple(one for one in asked if one.finding is None))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the rules of one component make of a picture, and whether its true label speaks against the part there."""

    verdict: Verdict
    is_bad: bool

    @property
    def is_called(self) -> bool:
        return self.verdict in _CALLS


def _outcome(board: Rules, steps: Sequence[Step], truth: str, finding: Finding) -> _Outcome:
    verdict = worst(board.router.next(step, finding).verdict or Verdict.OK for step in steps)
    return _Outcome(verdict, any(step.outcomes[truth] in _CALLS for step in steps))


def _judged(asked: PictureAnswer, finding: Finding, outcomes: Sequence[_Outcome]) -> JudgedPicture:
    escape = any(one.is_bad and not one.is_called for one in outcomes)
    false_call = any(one.is_called and not one.is_bad for one in outcomes)
    verdict = Verdict.OK if escape else worst(one.verdict for one in outcomes)
    return JudgedPicture(asked, finding, verdict, escape, false_call)


def good_of(board: Rules, id: str, pictures: Iterable[Photograph]) -> list[Photograph]:
    """Return those of an expert's verified pictures that are good wherever it looks."""
    steps = board.steps_of(id)
    return [one for one in pictures if not any(step.outcomes.get(one.label) in _CALLS for step in steps)]


def examined(board: Rules, asked: BoardExperts, id: str, pictures: Sequence[Photograph]) -> tuple[ExamItem, ...]:
    """Return the exam of an expert by the rules of a board, made from those of its verified pictures that are good.

    A picture passes if it is OK at any of the components that it may show; of a good one that does not pass itself, no
    picture is made, because it would prove nothing. An expert that judges each component by its own good parts has rows
    of components. Raises CoeError if the expert cannot run.
    """
    expert = board.experts[id]
    by_component = asked.has_limits(expert)
    served = {name: component.steps_of(id) for name, component in photo_labels.served(board.components, id).items()}
    good = good_of(board, id, pictures)
    evenly = good[:: -(-len(good) // _MOST_SHOWN)] if good else []

    def passes(picture: Photograph, finding: Finding) -> bool:
        verdicts = (
            worst(board.router.next(step, finding).verdict or Verdict.OK for step in steps)
            for name, steps in served.items()
            if picture.component in ("", name)
        )
        return any(verdict is Verdict.OK for verdict in verdicts)

    said = ((one.picture, one.finding) for one in asked.ask(expert, evenly))
    passing = [picture for picture, finding in said if finding is not None and passes(picture, finding)]
    return apart(
        added(
            ExamItem(
                item=item,
                shown=1,
                passed=int(passes(picture, finding)),
                component=picture.component if by_component else "",
            )
            for picture, item, finding in asked.ask_what_must_not_pass(expert, passing)
        )
    )


def by_labels(expert: Expert, asked: Iterable[PictureAnswer]) -> Evaluation:
    """Compare what an expert says of its pictures with their labels alone, without rules."""
    asked = tuple(asked)
    judged = [JudgedPicture(one, one.finding, Verdict.REVIEW) for one in asked if one.finding is not None]
    return Evaluation(expert, tuple(judged), (), tuple(one for one in asked if one.finding is None))


def _row(
    expert: Expert, components: Sequence[str], outcomes: Sequence[tuple[JudgedPicture, bool, bool]]
) -> EvaluationRow:
    """Return the rates of components by whose rules the pictures fare alike; (picture, is bad, is called) for each."""
    bad = [called for _, is_bad, called in outcomes if is_bad]
    good = [called for _, is_bad, called in outcomes if not is_bad]
    return EvaluationRow(
        expert=expert.id,
        components=tuple(components),
        pictures=len(outcomes),
        as_labelled=sum(picture.is_as_labelled for picture, *_ in outcomes),
        escapes=Rate(bad.count(False), len(bad)) if bad else None,
        false_calls=Rate(good.count(True), len(good)) if good else None,
    )
