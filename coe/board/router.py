"""From an expert's finding to the next steps or the verdict, and from counts and shares to usage probability."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coe.core import FULL, NOTHING, Finding, Verdict, added, again_id, worst
from coe.errors import RulesError, did_you_mean


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A place in the rules: an expert, the least score it is believed at, and what follows each label.

    A finding scored under `min_score` goes to REVIEW. `shares` is the expected share of each label.
    """

    expert: str
    min_score: float
    # Without these, else the repr of steps that share followers grows as their tree, not as their graph.
    outcomes: Mapping[str, Outcome] = field(repr=False)
    shares: Mapping[str, float] = field(default_factory=dict, repr=False)

    def next_steps(self) -> list[Step]:
        """Return the steps that may follow directly, each once."""
        found = [step for outcome in self.outcomes.values() if isinstance(outcome, tuple) for step in outcome]
        return list(dict.fromkeys(found))

    def walk(self) -> Iterator[Step]:
        """Yield this step and all that may follow, each once, predecessors first and else in the order of the rules."""
        order: list[Step] = []
        seen: set[Step] = set()

        def visit(step: Step) -> None:
            if step not in seen:
                seen.add(step)
                for following in reversed(step.next_steps()):
                    visit(following)
                order.append(step)

        visit(self)
        return reversed(order)

    def edges(self) -> Iterator[tuple[str, str]]:
        """Yield the edges expert -> expert that this step and its followers imply."""
        for step in self.walk():
            for following in step.next_steps():
                yield step.expert, following.expert


Outcome = Verdict | tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a finding: a verdict that is certain, None if there is none yet, and steps that must pass too.

    There is a verdict, or there are steps, or both.
    """

    verdict: Verdict | None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Component:
    """A component type: how many of them a board has, and the step with which its inspection begins."""

    name: str
    count: float
    root: Step


@dataclass(frozen=True, slots=True)
class Escalation:
    """When an expert looks again in full precision: where its margin is under `below`, for `share` of its findings."""

    below: float
    share: float


class Router:
    """The function from findings to what comes next; it holds no state.

    `escalations` names the experts whose findings of a lesser variant are made again where they are in doubt, by the
    expert `again_id(expert)`; `second_looks` are the ids of all that may do so.
    """

    def __init__(
        self, components: Mapping[str, Component], escalations: Mapping[str, Escalation] | None = None
    ) -> None:
        self.components = dict(components)
        self.escalations = dict(escalations or {})
        self.second_looks = frozenset(again_id(expert) for expert in self.escalations)
        self._order = {
            name: {expert: rank for rank, expert in enumerate(self._on_the_way(component.root))}
            for name, component in components.items()
        }

    def _on_the_way(self, root: Step) -> Iterator[str]:
        for step in root.walk():
            yield step.expert
            if step.expert in self.escalations:
                yield again_id(step.expert)

    def judge(self, expert: str, finding: Finding | None) -> str:
        """Return who decides for an expert that said this (None: nothing yet): itself, or, in doubt, its second look.

        A margin that is not a number is a doubt too.
        """
        doubt = self.escalations.get(expert)
        if doubt is None or finding is None or finding.variant == FULL or finding.margin >= doubt.below:
            return expert
        return again_id(expert)

    def order(self, component: str) -> Mapping[str, int]:
        """Return the rank of each expert on a component's way, predecessors first; empty if it is not known."""
        return self._order.get(component, {})

    def first(self, component: str) -> Step:
        """Return a component's first step; raises RulesError if the board has no such component."""
        try:
            return self.components[component].root
        except KeyError:
            hint = did_you_mean(component, self.components)
            raise RulesError(f"the board has no component '{component}'{hint}") from None

    def next(self, step: Step, finding: Finding) -> Decision:
        """Return what follows from all that an expert saw; raises RulesError for a label of no rule.

        The finding and each box lead where their labels do, and of those that lead to the same the best counts. What is
        scored under `min_score` means REVIEW. The worst verdict leads: a good box hides no bad one.
        """
        scores = {_outcome(step, finding.label): finding.score}
        for box in finding.boxes:
            if box.label != finding.label:  # its best box speaks for that label, at the finding's score
                outcome = _outcome(step, box.label)
                scores[outcome] = max(scores.get(outcome, box.score), box.score)
        # Written so that a score that is not a number is not believed either.
        outcomes = [outcome if score >= step.min_score else Verdict.REVIEW for outcome, score in scores.items()]
        verdicts = [outcome for outcome in outcomes if isinstance(outcome, Verdict)]
        if Verdict.NG in verdicts:
            return Decision(Verdict.NG)
        believed = set(outcomes)
        # In the order of the rules, not in that of the scores.
        ahead = [outcome for outcome in step.outcomes.values() if isinstance(outcome, tuple) and outcome in believed]
        steps = dict.fromkeys(step for outcome in ahead for step in outcome)
        return Decision(worst(verdicts) if verdicts else None, tuple(steps))


def _outcome(step: Step, label: str) -> Outcome:
    if label in step.outcomes:
        return step.outcomes[label]
    if label == NOTHING:
        raise RulesError(
            f"expert '{step.expert}' saw nothing, and no rule says what follows; write `{NOTHING}: REVIEW`, "
            f"`{NOTHING}: NG` or `{NOTHING}: OK` in its `then`"
        )
    raise RulesError(f"expert '{step.expert}' said '{label}', which no rule covers")


def follows(
    components: Iterable[Component], escalations: Mapping[str, Escalation] | None = None
) -> dict[str, dict[str, float]]:
    """Return for each expert how many stages of each other one stage of it leads to, at once or later, on average.

    Components count by how often they come and reach the expert; the label of each finding is drawn by its share, and
    an expert looks again in the share of its findings that is expected to be in doubt.
    """
    reaches: dict[str, float] = {}
    leads: dict[str, dict[str, float]] = {}
    for component in components:
        steps = list(component.root.walk())
        reached = _reached(component.root, component.count)
        for step in steps:
            mass = reached.get(step, 0.0)
            reaches[step.expert] = reaches.get(step.expert, 0.0) + mass
            own = leads.setdefault(step.expert, {})
            for later, share in _reached(step, 1.0).items():
                if later.expert != step.expert:
                    own[later.expert] = own.get(later.expert, 0.0) + mass * share
    found = {
        expert: {other: mass / reaches[expert] for other, mass in own.items() if mass > 0}
        for expert, own in leads.items()
    }
    for expert, doubt in (escalations or {}).items():
        found[again_id(expert)] = dict(found[expert])
        found[expert][again_id(expert)] = doubt.share
        for own in found.values():
            if expert in own:
                own[again_id(expert)] = own[expert] * doubt.share
    return found


def first_experts(components: Iterable[Component]) -> frozenset[str]:
    """Return the experts with which the inspection of a component begins, of those components that occur."""
    return frozenset(component.root.expert for component in components if component.count > 0)


def _reached(root: Step, mass: float) -> dict[Step, float]:
    """Return how much of `mass` images at a step reach it and each that may follow; branches that meet count once."""
    reached = {root: mass}
    for step in root.walk():
        own = reached[step] = min(reached.get(step, 0.0), mass)
        for label, outcome in step.outcomes.items():
            for following in outcome if isinstance(outcome, tuple) else ():
                reached[following] = reached.get(following, 0.0) + own * step.shares.get(label, 0.0)
    return reached


def usage(components: Iterable[Component], escalations: Mapping[str, Escalation] | None = None) -> dict[str, float]:
    """Return for each expert the probability that an image needs it (paper section 4.5).

    The component of an image is drawn by count, the label of each finding by its share; an expert looks again in the
    share of its findings that is expected to be in doubt.
    """
    components = list(components)
    total = added(component.count for component in components) or 1.0
    probability: dict[str, float] = {}
    for component in components:
        needed: dict[str, float] = {}
        for step, mass in _reached(component.root, component.count / total).items():
            needed[step.expert] = needed.get(step.expert, 0.0) + mass
        for expert, mass in needed.items():
            # An expert that two branches need runs once for an image.
            probability[expert] = probability.get(expert, 0.0) + min(mass, component.count / total)
    for expert, doubt in (escalations or {}).items():
        probability[again_id(expert)] = doubt.share * probability.get(expert, 0.0)
    return probability
