"""The way that an image is likely to take through the experts, for policies that look along it."""

from __future__ import annotations

from coe.board.graph import ExpertGraph
from coe.board.router import Router
from coe.scheduler.history import ImageView


def predicted(router: Router, image: ImageView) -> tuple[str, ...]:
    """Return the experts that an image's component will probably need by the rules, predecessors first.

    These are its first expert and those that at least half of its images need (`Router.likely`); none for a component
    that the board does not have.
    """
    component = image.request.rule
    return router.likely(component) if component in router.components else ()


def remaining(router: Router, image: ImageView) -> tuple[str, ...]:
    """Return the part of the predicted path that has no finding yet."""
    return tuple(expert for expert in predicted(router, image) if expert not in image.findings)


def layers(graph: ExpertGraph) -> dict[str, int]:
    """Return the layer of each expert: 0 without predecessors, else 1 more than the highest of its predecessors."""
    import networkx as nx  # slow to import, and `--help` needs no graph

    return {
        expert: layer for layer, experts in enumerate(nx.topological_generations(graph.digraph)) for expert in experts
    }
