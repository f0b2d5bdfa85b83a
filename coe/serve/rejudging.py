"""Parts that were inspected, judged again by other rules from the findings that are stored: nothing is inspected.

What the stored findings cannot tell has no verdict here: an expert that was not asked then, boxes that were ignored
then and may count now, an expert or a reference that is another now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coe.board.rules import Rules
from coe.board.scores import adjusted, honest
from coe.board.steps import Component, Step
from coe.core import Expert, Finding, Verdict, decided, worst
from coe.errors import CoeError, RulesError
from coe.results.result_lines import finding_of


class Rejudge:
    """Judges by the rules `now` what was found under the rules `then`. Findings of `anew` count as not there."""

    def __init__(self, then: Rules, now: Rules, anew: Collection[str] = ()) -> None:
        self._now = now
        self._kept = {
            id: _Adjusting(then.experts[id], expert)
            for id, expert in now.experts.items()
            if id in then.experts and id not in anew and _sees_alike(then.experts[id], expert)
        }
        self._alike = {name for name, one in now.components.items() if _compares_alike(then.components.get(name), one)}
        same = {id for id in self._kept if then.experts[id] == now.experts[id]}
        self._unchanged = {
            name
            for name in self._alike
            if _shape(then.components[name]) == (shape := _shape(now.components[name]))
            and same >= {one[0] for one in shape}
        }

    def verdict(self, component: str, rows: Sequence[Mapping[str, Any]], today: Verdict) -> Verdict | None:
        """Return the verdict of a part by the rows of its findings (`Finding.to_dict`); None if they do not tell it.

        `today` is that under the rules `then`.
        """
        if component in self._unchanged:
            return today
        rule = self._now.components.get(component)
        if rule is None or component not in self._alike:
            return None
        by_expert = decided({row["expert"]: finding_of(row) for row in rows})
        return self._walk(rule.root, by_expert)

    def _walk(self, root: Step, by_expert: Mapping[str, Finding]) -> Verdict | None:
        waiting, seen, verdicts, is_known = [root], {root}, list[Verdict](), True
        while waiting:
            step = waiting.pop()
            finding = self._finding(step.expert, by_expert)
            if finding is None:
                is_known = False
                continue
            try:
                consequence = self._now.router.next(step, finding)
            except RulesError:  # no rule covers the label, so the part is called
                verdicts.append(Verdict.REVIEW)
                continue
            if consequence.verdict is not None:
                verdicts.append(consequence.verdict)
            waiting += [one for one in consequence.steps if one not in seen]
            seen |= set(consequence.steps)
        verdict = worst(verdicts)
        return verdict if is_known or verdict is Verdict.NG else None

    def _finding(self, expert: str, by_expert: Mapping[str, Finding]) -> Finding | None:
        finding, adjusting = by_expert.get(expert), self._kept.get(expert)
        return None if finding is None or adjusting is None else adjusting(finding)


class _Adjusting:
    """Gives a finding the honest scores, and the boxes, that it has by another entry of its expert."""

    def __init__(self, then: Expert, now: Expert) -> None:
        self._undo, self._now = 1 / then.temperature, now
        self._is_same = (then.temperature, then.ignore_under) == (now.temperature, now.ignore_under)
        lower = honest_scores(now.ignore_under, 1 / now.temperature)
        self._may_lack_boxes = any(
            score > lower.get(label, 0.0) for label, score in honest_scores(then.ignore_under, self._undo).items()
        )

    def __call__(self, finding: Finding) -> Finding | None:
        if self._is_same:
            return finding
        if self._may_lack_boxes:
            return None
        boxes = tuple(replace(box, score=honest(box.score, self._undo)) for box in finding.boxes)
        raw = replace(finding, score=honest(finding.score, self._undo), boxes=boxes)
        try:
            return adjusted(raw, self._now)
        except CoeError:  # the new entry ignores boxes of an expert that gives none
            return None


def honest_scores(scores: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Return scores by label with their odds divided by a temperature."""
    return {label: honest(score, temperature) for label, score in scores.items()}


def _sees_alike(then: Expert, now: Expert) -> bool:
    """Whether two entries of one name are one expert, so that it would find the same boxes and labels."""
    bare, other = (replace(one, temperature=1.0, ignore_under={}, reject=frozenset()) for one in (then, now))
    return bare == other


def _shape(component: Component) -> list[tuple[Any, ...]]:
    """Return what the rules of a component say, in a form in which equal rules are equal; experts come first."""
    steps = list(component.root.walk())
    places = {step: place for place, step in enumerate(steps)}
    return [
        (
            step.expert,
            step.min_score,
            step.min_scores,
            {
                label: tuple(map(places.__getitem__, outcome)) if isinstance(outcome, tuple) else outcome
                for label, outcome in step.outcomes.items()
            },
        )
        for step in steps
    ]


def _compares_alike(then: Component | None, now: Component) -> bool:
    if then is None or (then.polarity, then.accepts) != (now.polarity, now.accepts):  # stored doubts may not hold
        return False
    return (then.references, then.is_given) == (now.references, now.is_given)
