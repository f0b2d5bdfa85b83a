"""The DAG of experts: which expert follows which, and how likely an image needs each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from coe import config
from coe.board.steps import Component, Escalation, Step
from coe.core import Expert, Verdict, again_id
from coe.helpers.arithmetic import added

if TYPE_CHECKING:
    import networkx as nx


class ExpertCircle(ValueError):
    """Experts that follow each other in a circle, each named once."""

    def __init__(self, circle: tuple[str, ...]) -> None:
        super().__init__(f"experts follow each other in a circle: {' -> '.join((*circle, circle[0]))}")
        self.circle = circle


class ExpertGraph:
    """Experts and the edges predecessor -> successor over a `networkx.DiGraph`; fixed once built.

    `probability` maps each expert to the probability that an image needs it (paper section 4.5). `first` are the
    experts with which the inspection of a component begins: they run without a predecessor.
    """

    def __init__(
        self,
        experts: Iterable[Expert],
        edges: Iterable[tuple[str, str]],
        probability: Mapping[str, float],
        first: Iterable[str] = (),
    ) -> None:
        import networkx as nx  # slow to import, and `--help` needs no graph

        self.experts = {expert.id: expert for expert in experts}
        self.digraph: nx.DiGraph[str] = nx.DiGraph()
        self.digraph.add_nodes_from(self.experts)
        self.digraph.add_edges_from(edges)
        if unknown := set(self.digraph) - set(self.experts):
            raise ValueError(f"edges name unknown experts: {sorted(unknown)}")
        if not nx.is_directed_acyclic_graph(self.digraph):
            raise ExpertCircle(tuple(before for before, _ in nx.find_cycle(self.digraph)))
        self._first = frozenset(first)
        if strangers := self._first - set(self.experts):
            raise ValueError(f"first steps name unknown experts: {sorted(strangers)}")
        self._probability = {expert: float(probability.get(expert, 0.0)) for expert in self.experts}
        self._successors = {expert: tuple(self.digraph.successors(expert)) for expert in self.experts}
        self._predecessors = {expert: frozenset(self.digraph.predecessors(expert)) for expert in self.experts}
        self.by_probability: tuple[str, ...] = tuple(sorted(self.experts, key=lambda e: (-self._probability[e], e)))
        """All experts, the likeliest first; ties in the order of names."""

    @classmethod
    def of(cls, experts: Iterable[Expert], components: Iterable[Component]) -> ExpertGraph:
        """Return the graph of all steps of components; raises ExpertCircle."""
        components = list(components)
        edges = dict.fromkeys(edge for component in components for edge in component.root.edges())
        return cls(experts, edges, usage(components), first_experts(components))

    def __repr__(self) -> str:
        return f"<ExpertGraph {len(self.experts)} experts, {self.digraph.number_of_edges()} edges>"

    def using(self, probability: Mapping[str, float]) -> ExpertGraph:
        """Return this graph with the probabilities of some experts replaced."""
        probability = self._probability | dict(probability)
        return ExpertGraph(self.experts.values(), self.digraph.edges, probability, self._first)

    def probability(self, expert: str) -> float:
        """Return the probability that an image needs this expert."""
        return self._probability[expert]

    def predecessors(self, expert: str) -> frozenset[str]:
        """Return the experts whose findings can lead to this expert."""
        return self._predecessors[expert]

    def successors(self, expert: str) -> tuple[str, ...]:
        """Return the experts that this expert's findings can lead to."""
        return self._successors[expert]

    def waits_for_others(self, expert: str) -> bool:
        """Return whether an expert runs only after a predecessor: it has one, and no component begins with it."""
        return bool(self._predecessors[expert]) and expert not in self._first


def circle_through(expert: str, thens: Iterable[tuple[str, Mapping[Any, Any]]]) -> tuple[str, ...]:
    """Return a circle of experts that begins with `expert`, each named in a `then` of its predecessor; () if none.

    `thens` holds every `then` of a raw board file, with the expert whose labels it covers. A circle can look like a
    label that no rule covers, where it leads back to an expert whose `then` stands only in a component.
    """
    import networkx as nx  # slow to import, and `--help` needs no graph

    digraph: nx.DiGraph[str] = nx.DiGraph()
    for name, then in thens:
        digraph.add_edges_from(_named(name, then))
    for after in sorted(digraph.successors(expert)) if expert in digraph else ():
        if nx.has_path(digraph, after, expert):
            return (expert, *nx.shortest_path(digraph, after, expert)[:-1])
    return ()


def _named(expert: str, then: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield the edges to all names of experts in a `then` and in its nested steps, also to names that are wrong."""
    waiting = [(expert, value) for value in then.values()]
    while waiting:
        before, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(before, each) for each in value]
        elif isinstance(value, str) and value not in Verdict.__members__:
            yield before, value
        elif isinstance(value, dict) and isinstance(value.get("inspect"), str):
            yield before, value["inspect"]
            inner = value.get("then")
            waiting += [(value["inspect"], each) for each in inner.values()] if isinstance(inner, dict) else []


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
