"""Experts that name each other in a circle, found in the raw board file, before any of it is resolved.

A circle can look like a label that no rule covers: it leads back to an expert whose `then` stands only in a component.
In this case the error should name the circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from coe.core import Verdict

if TYPE_CHECKING:
    import networkx as nx


def through(expert: str, thens: Iterable[tuple[str, Mapping[Any, Any]]]) -> tuple[str, ...]:
    """Return a circle of experts that begins with `expert`, each named in a `then` of its predecessor; () if none.

    `thens` holds every `then` of the file, with the expert whose labels it covers.
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
