"""Findings without experts: for the same image always the same finding, in whatever order the experts run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

import xxhash

from coe.board.rules import Rules
from coe.core import FULL, Finding, Request, again_id


class Oracle(Protocol):
    """Gives findings in place of experts."""

    def find(self, request: Request, expert: str) -> Finding:
        """Return the finding of an expert for a request's image."""


class SampledOracle:
    """Draws labels by the shares in a board's rules.

    The draw depends on seed, request and expert alone, so that strategies are compared on the same findings. All scores
    are 1, because the rules do not tell how many findings have too low a score. Of the findings of a lesser variant the
    share `doubtful` is in doubt; its second look says the same label.
    """

    def __init__(self, board: Rules, seed: int = 0, doubtful: float = 0.0) -> None:
        self._seed, self._doubtful = seed, doubtful
        self._variants = {id: expert.variant for id, expert in board.experts.items()}
        self._escalated = board.router.escalations
        self._first_looks = {again_id(expert): expert for expert in self._escalated}
        self._labels: dict[tuple[str, str], tuple[tuple[str, float], ...]] = {}
        for name, component in board.components.items():
            for step in component.root.walk():
                reached = accumulate(step.shares.values())
                draws = tuple(zip(step.shares, reached, strict=True))
                # An expert in two steps of a component has one finding; the shares of the first step hold.
                self._labels.setdefault((name, step.expert), draws)

    def find(self, request: Request, expert: str) -> Finding:
        """Return the finding that was drawn for this request and expert; full precision has no doubts."""
        looked = self._first_looks.get(expert, expert)
        draw, draws = self._draw(request, looked), self._labels[request.rule, looked]
        label = next((label for label, reached in draws if draw < reached), draws[-1][0])
        finding = Finding(expert, self._variants[expert], label, 1.0)
        if expert not in self._escalated or finding.variant == FULL:
            return finding
        is_doubtful = self._draw(request, again_id(expert)) < self._doubtful
        return replace(finding, margin=0.0 if is_doubtful else 1.0)

    def _draw(self, request: Request, what: str) -> float:
        """Return a number from 0 to 1 that depends on the seed, the request and a name alone."""
        return xxhash.xxh3_64_intdigest(f"{self._seed}/{request.id}/{what}".encode()) / 2**64


class RecordedOracle:
    """Repeats the findings of a recorded run (by request id, then expert); another oracle gives the rest."""

    def __init__(self, recorded: Mapping[int, Mapping[str, Finding]], other: Oracle) -> None:
        self._recorded, self._other = recorded, other

    def find(self, request: Request, expert: str) -> Finding:
        """Return the recorded finding, or the other oracle's."""
        finding = self._recorded.get(request.id, {}).get(expert)
        return finding or self._other.find(request, expert)
