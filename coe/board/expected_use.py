"""How often the rules lead to each expert, from the counts of components and the shares of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coe import config
from coe.board.steps import Component, Escalation, Step
from coe.core import added, again_id


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


def likely_experts(root: Step) -> tuple[str, ...]:
    """Return the expert of a first step, then those that at least half of its images will need."""
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
