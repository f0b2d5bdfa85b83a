"""What experts would say: the same of the same image, whenever and in whatever order they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Protocol

import xxhash

from coe.board.rules import Rules
from coe.core import Finding, Request


class Oracle(Protocol):
    """Answers in the place of experts."""

    def find(self, request: Request, expert: str) -> Finding:
        """Return what an expert says of a request's image."""
        ...


class SampledOracle:
    """Draws labels by the shares that a board's rules expect of them.

    The draw depends on seed, request and expert alone, so that strategies are compared on the same findings. Scores
    are 1: rules cannot tell how many findings are too weak to be believed.
    """

    def __init__(self, board: Rules, seed: int = 0) -> None:
        self._seed = seed
        self._labels: dict[tuple[str, str], tuple[tuple[str, float], ...]] = {}
        for name, component in board.components.items():
            for step in component.root.walk():
                reached = accumulate(step.shares.values())
                draws = tuple(zip(step.shares, reached, strict=True))
                # An expert that a component's rules name twice says one thing; the first step's shares hold.
                self._labels.setdefault((name, step.expert), draws)

    def find(self, request: Request, expert: str) -> Finding:
        """Return the finding that was drawn for this request and expert."""
        draw = xxhash.xxh3_64_intdigest(f"{self._seed}/{request.id}/{expert}".encode()) / 2**64
        draws = self._labels[request.component, expert]
        label = next((label for label, reached in draws if draw < reached), draws[-1][0])
        return Finding(expert, "fp32", label, 1.0)


class RecordedOracle:
    """Repeats what was found in a recorded run (by request id, then expert); asks another oracle about the rest."""

    def __init__(self, recorded: Mapping[int, Mapping[str, Finding]], other: Oracle) -> None:
        self._recorded, self._other = recorded, other

    def find(self, request: Request, expert: str) -> Finding:
        """Return the recorded finding, or the other oracle's."""
        known = self._recorded.get(request.id, {}).get(expert)
        return known or self._other.find(request, expert)
