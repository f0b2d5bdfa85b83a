"""Experts that name each other in a circle, found in what a board file says before any of it is resolved.

A label that no rule covers may come of a circle: the way back leads to an expert that says what follows in a component
alone. Then the circle is what its author has to know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import networkx as nx

from coe.core import Verdict


def through(expert: str, thens: Iterable[tuple[str, Mapping[Any, Any]]]) -> tuple[str, ...]:
    """Return a circle that begins with an expert, each named in a `then` of the one before, or nothing.

    `thens` are all that a file holds: an expert and what it says (or a component says) of what follows it.
    """
    digraph: nx.DiGraph[str] = nx.DiGraph()
    for name, then in thens:
        digraph.add_edges_from(_named(name, then))
    for after in sorted(digraph.successors(expert)) if expert in digraph else ():
        if nx.has_path(digraph, after, expert):
            return (expert, *nx.shortest_path(digraph, after, expert)[:-1])
    return ()


def _named(expert: str, then: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield the edges to all experts that a `then` names, nested steps too, checked or not."""
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
