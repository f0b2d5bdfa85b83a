"""The rules as a function: from a finding to the next steps or the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from coe.board.graph import follows, likely_experts
from coe.board.scores import margin_between
from coe.board.steps import Component, Consequence, Escalation, Outcome, Step
from coe.core import FULL, NOTHING, Finding, Request, Shown, Verdict, again_id, worst
from coe.errors import RulesError, did_you_mean

CONSEQUENCES = 10_000
"""So many consequences are kept: a detector may see any of its labels together."""
_BLIND = (
    "a {item} part could pass here, as the exam shows: train the expert with {item} parts as bad ones, or write "
    "accepts: [{item}] at the component"
)


@dataclass(frozen=True, slots=True)
class Passed:
    """The findings of an image that all say OK, by expert, once what the experts are blind to counts.

    `is_doubted`: one of the findings got a doubt, so that the image is REVIEW. `accepted` are gaps that the board file
    accepts.
    """

    findings: Mapping[str, Finding]
    is_doubted: bool = False
    accepted: tuple[Shown, ...] = ()


class Router:
    """The function from findings to the next steps; it holds no state.

    `escalations` names the experts that run in a lesser variant and look again at a doubtful image, as the expert
    `again_id(expert)`; `second_looks` holds these second ids.

    `components` are by rule (`Request.rule`): by name, if there is one board. `names` holds the names that experts have
    in the results, where these are not their ids: two boards may use one name for different experts.
    """

    def __init__(
        self,
        components: Mapping[str, Component],
        escalations: Mapping[str, Escalation] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.components, self.names = dict(components), dict(names or {})
        self.escalations = dict(escalations or {})
        self._shown = self.names | {again_id(id): again_id(name) for id, name in self.names.items()}
        self.second_looks = frozenset(again_id(expert) for expert in self.escalations)
        self._order = {
            name: {expert: rank for rank, expert in enumerate(self._on_the_way(component.root))}
            for name, component in components.items()
        }

        self._steps: dict[str, dict[Step, None]] = {expert: {} for expert in self.escalations}
        for step in (step for component in components.values() for step in component.root.walk()):
            if step.expert in self._steps:
                self._steps[step.expert][step] = None
        self._examined = {
            name for name, component in components.items() if any(step.stops for step in component.root.walk())
        }
        self._likely = {component.root: likely_experts(component.root) for component in components.values()}
        # Few combinations of labels ever come, and each is asked for again and again.
        self._consequence = lru_cache(CONSEQUENCES)(_consequence)

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process as the rules alone; what is kept for speed is made there again."""
        return type(self), (self.components, self.escalations, self.names)

    def _on_the_way(self, root: Step) -> Iterator[str]:
        for step in root.walk():
            yield step.expert
            if step.expert in self.escalations:
                yield again_id(step.expert)

    def likely(self, component: str) -> tuple[str, ...]:
        """Return a component's first expert, then those that by the rules at least half of its images will need.

        Raises RulesError if the board has no such component.
        """
        root = self.first(component)
        return self._likely[root]

    def judge(self, expert: str, finding: Finding | None) -> str:
        """Return the id whose finding decides: `expert`, or that of its second look if `finding` is in doubt.

        `finding` is None before the expert has run. A margin that is not a number counts as a doubt.
        """
        escalation = self.escalations.get(expert)
        if escalation is None or finding is None or finding.variant == FULL:
            return expert
        seen = finding.best_scores().items()
        apart = (margin_between(score, step.least(label)) for step in self._steps[expert] for label, score in seen)
        if finding.margin >= escalation.below and all(margin >= escalation.below for margin in apart):
            return expert
        return again_id(expert)

    def named(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return findings under the names that their experts have in the board file."""
        if not self._shown:
            return tuple(findings)
        return tuple(replace(finding, expert=self._shown.get(finding.expert, finding.expert)) for finding in findings)

    def followers(self) -> dict[str, dict[str, float]]:
        """Return for each expert the mean number of stages of each other expert that one of its stages leads to."""
        return follows(self.components.values(), self.escalations)

    def order(self, component: str) -> Mapping[str, int]:
        """Return the rank of each expert that a component may need, predecessors first; empty if it is unknown."""
        return self._order.get(component, {})

    def first(self, component: str) -> Step:
        """Return a component's first step; raises RulesError if the board has no such component."""
        try:
            return self.components[component].root
        except KeyError:
            hint = did_you_mean(component, self.components)
            raise RulesError(f"the board has no component '{component}'{hint}") from None

    def next(self, step: Step, finding: Finding) -> Consequence:
        """Return the consequence of a finding and all its boxes; raises RulesError for a label that no rule covers.

        The finding and each box have the outcomes of their labels. An outcome counts if the best score of one of its
        labels is high enough for that label; it means REVIEW instead if none is. The worst verdict decides: a good box
        hides no bad box. A finding in doubt means REVIEW if it does not mean NG, and no step follows it.
        """
        seen = tuple([(label, step.believes(label, score)) for label, score in finding.best_scores().items()])
        return self._consequence(step, seen, finding.doubt)

    def passed(self, request: Request, findings: Mapping[str, Finding]) -> Passed:
        """Return the findings of an image that is OK by them: in doubt, if nothing stops what an expert is blind to.

        `findings` are by the ids under which the experts looked. What is seen by no expert is never OK, unless the
        board file accepts it.
        """
        if request.rule not in self._examined:
            return Passed(findings)
        component = self.components[request.rule]
        gaps = component.gaps(findings.keys(), request.refdes)
        doubted = dict(findings)
        for gap in gaps:
            if gap.item not in component.accepts:
                id = again_id(gap.expert) if again_id(gap.expert) in doubted else gap.expert
                doubt = "; ".join(filter(None, (doubted[id].doubt, _BLIND.format(item=gap.item))))
                doubted[id] = replace(doubted[id], doubt=doubt)
        accepted = tuple(gap.item for gap in gaps if gap.item in component.accepts)
        return Passed(doubted, len(accepted) < len(gaps), accepted)


def _consequence(step: Step, seen: tuple[tuple[str, bool], ...], doubt: bool) -> Consequence:
    """Return the consequence of the labels that were seen, each with whether its best score is high enough."""
    sure: dict[Outcome, bool] = {}
    for label, is_believed in seen:
        outcome = _outcome(step, label)
        sure[outcome] = sure.get(outcome, False) or is_believed
    outcomes = [outcome if is_sure else Verdict.REVIEW for outcome, is_sure in sure.items()]
    verdicts = [outcome for outcome in outcomes if isinstance(outcome, Verdict)]
    if Verdict.NG in verdicts:
        return Consequence(Verdict.NG)
    if doubt:
        return Consequence(Verdict.REVIEW)
    believed = set(outcomes)
    # Steps come in the order of the rules, whatever the scores are.
    ahead = [outcome for outcome in step.outcomes.values() if isinstance(outcome, tuple) and outcome in believed]
    steps = dict.fromkeys(step for outcome in ahead for step in outcome)
    return Consequence(worst(verdicts) if verdicts else None, tuple(steps))


def _outcome(step: Step, label: str) -> Outcome:
    if label in step.outcomes:
        return step.outcomes[label]
    if label == NOTHING:
        raise RulesError(
            f"expert '{step.expert}' saw nothing, and no rule says what follows; write `{NOTHING}: REVIEW`, "
            f"`{NOTHING}: NG` or `{NOTHING}: OK` in its `then`"
        )
    raise RulesError(f"expert '{step.expert}' gave '{label}', which no rule covers; add it to a `then`")
