"""The rules as functions: from a finding to the next steps or the verdict, from counts and shares to usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from coe import config
from coe.board.scores import best_scores, margin_between
from coe.core import FULL, NOTHING, Finding, Verdict, added, again_id, worst
from coe.errors import RulesError, did_you_mean

CONSEQUENCES = 10_000
"""So many consequences are kept: a detector may see any of its labels together."""
GIVEN = "given"
"""The word in the rules for a reference that comes with each picture."""


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A place in the rules: an expert, the least score that counts, and the outcome of each label.

    A label scored under `min_score`, or under its own score in `min_scores`, goes to REVIEW. `shares` is the expected
    share of each label.
    """

    expert: str
    min_score: float
    # Not in the repr, which would repeat a shared step for every path that leads to it.
    outcomes: Mapping[str, Outcome] = field(repr=False)
    shares: Mapping[str, float] = field(default_factory=dict, repr=False)
    min_scores: Mapping[str, float] = field(default_factory=dict, repr=False)

    def believes(self, label: str, score: float) -> bool:
        """Tell whether a label's score is high enough; a score that is not a number never is."""
        return score >= self.least(label)

    def least(self, label: str) -> float:
        """Return the least score with which a label counts."""
        return max(self.min_score, self.min_scores.get(label, 0.0))

    def next_steps(self) -> list[Step]:
        """Return the steps that may follow directly, each once."""
        steps = [step for outcome in self.outcomes.values() if isinstance(outcome, tuple) for step in outcome]
        return list(dict.fromkeys(steps))

    def walk(self) -> Iterator[Step]:
        """Yield this step and all that may follow, each once: predecessors first, then in the order of the rules."""
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
class Consequence:
    """The consequence of a finding: a certain verdict (None if there is none yet), and steps that must pass too.

    At least one of the two is there.
    """

    verdict: Verdict | None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Component:
    """A component type: its count on a board, and the step with which its inspection begins.

    `references` are the ids in the store of what its pictures are compared with, several if good parts look in several
    ways; if it `is_given`, each picture brings its own. With `stop_at_ng` an image that is NG needs no further finding.
    """

    name: str
    count: float
    root: Step
    references: tuple[str, ...] = ()
    is_given: bool = False
    stop_at_ng: bool = False


@dataclass(frozen=True, slots=True)
class Escalation:
    """When an expert looks again in full precision: at a margin under `below`, expected for `share` of its findings.

    A score so near to the least that counts is in doubt as well.
    """

    below: float
    share: float


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
        self._likely = {component.root: _likely(component.root) for component in components.values()}
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
        seen = best_scores(finding).items()
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
        seen = tuple([(label, step.believes(label, score)) for label, score in best_scores(finding).items()])
        return self._consequence(step, seen, finding.doubt)


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
    raise RulesError(f"expert '{step.expert}' said '{label}', which no rule covers")


def follows(
    components: Iterable[Component], escalations: Mapping[str, Escalation] | None = None
) -> dict[str, dict[str, float]]:
    """Return for each expert the mean number of stages of each other expert that one of its stages leads to.

    Direct and later followers count. Components are weighted by their counts and by how often they reach the expert.
    The label of each finding is drawn by its share; the expected share of doubtful findings leads to second looks.
    """
    reaches: dict[str, float] = {}
    leads: dict[str, dict[str, float]] = {}
    for component in components:
        steps = list(component.root.walk())
        reached = _reached(component.root, component.count)
        for step in steps:
            mass = reached.get(step, 0.0)
            reaches[step.expert] = reaches.get(step.expert, 0.0) + mass
            masses = leads.setdefault(step.expert, {})
            for later, share in _reached(step, 1.0).items():
                if later.expert != step.expert:
                    masses[later.expert] = masses.get(later.expert, 0.0) + mass * share
    followers = {
        expert: {other: mass / reaches[expert] for other, mass in masses.items() if mass > 0}
        for expert, masses in leads.items()
    }
    for expert, escalation in (escalations or {}).items():
        followers[again_id(expert)] = dict(followers[expert])
        followers[expert][again_id(expert)] = escalation.share
        for stages in followers.values():
            if expert in stages:
                stages[again_id(expert)] = stages[expert] * escalation.share
    return followers


def first_experts(components: Iterable[Component]) -> frozenset[str]:
    """Return the experts with which the inspection of a component begins, for all components with a count above 0."""
    return frozenset(component.root.expert for component in components if component.count > 0)


def _reached(root: Step, mass: float) -> dict[Step, float]:
    """Return how many of `mass` images at a step reach it and each later step; branches that meet count once."""
    reached = {root: mass}
    for step in root.walk():
        here = reached[step] = min(reached.get(step, 0.0), mass)
        for label, outcome in step.outcomes.items():
            for following in outcome if isinstance(outcome, tuple) else ():
                reached[following] = reached.get(following, 0.0) + here * step.shares.get(label, 0.0)
    return reached


def _likely(root: Step) -> tuple[str, ...]:
    masses = _reached(root, 1.0)
    likely = (step.expert for step in root.walk() if masses.get(step, 0.0) >= config.LIKELY)
    return tuple(dict.fromkeys([root.expert, *likely]))


def usage(components: Iterable[Component], escalations: Mapping[str, Escalation] | None = None) -> dict[str, float]:
    """Return for each expert the probability that an image needs it (paper section 4.5).

    The component of an image is drawn by its count, the label of each finding by its share. The expected share of
    doubtful findings leads to second looks.
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
    for expert, escalation in (escalations or {}).items():
        probability[again_id(expert)] = escalation.share * probability.get(expert, 0.0)
    return probability
