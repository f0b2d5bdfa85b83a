"""The DAG of experts: which expert follows which, and how likely an image needs each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from coe.board.expected_use import first_experts, usage
from coe.board.steps import Component
from coe.core import Expert, Verdict

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
