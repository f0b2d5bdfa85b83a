"""The demand for each expert: stages that wait, stages that its predecessors will send, and how often images need it.

This file counts and estimates; policies decide. A policy that keeps a ranking subscribes, and is told whose numbers
have changed, so that it moves only these experts.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from coe import config
from coe.scheduler.pool import PoolWatcher

_PARTS = 1 << 20
"""Shares are counted as whole numbers of this part, so that adding and subtracting the same share leaves exactly 0."""
_REBASE = 2.0**64
"""Once the weight of the newest image exceeds this, all weights are divided by it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The probability that an image needs an expert: by the rules, and as estimated from the images that came."""

    expert: str
    rules: float
    estimated: float

    @property
    def by(self) -> float:
        """The estimate less what the rules say."""
        return self.estimated - self.rules


class Demand(PoolWatcher):
    """Counts of open stages (waiting or running), of stages that will follow them, and of images that need an expert.

    `follows` holds for each expert how many stages of other experts one of its stages leads to. `usage` is the rules'
    probability that an image needs an expert; it counts as much as `config.USAGE_IMAGES` images. With each new image
    all earlier images weigh a little less, so that a change of product on the line shows.
    """

    def __init__(self, usage: Mapping[str, float], follows: Mapping[str, Mapping[str, float]]) -> None:
        self._open: defaultdict[str, int] = defaultdict(int)
        self._growth = 1 + 1 / config.USAGE_IMAGES
        self.begin(usage, follows)

    def begin(self, usage: Mapping[str, float], follows: Mapping[str, Mapping[str, float]]) -> None:
        """Begin with the probabilities of the rules; open stages stay open, and nobody subscribes any more.

        Other rules are a change that is announced: what was estimated from images before says nothing of it.
        """
        self._follows = {
            expert: tuple((other, round(share * _PARTS)) for other, share in others.items())
            for expert, others in follows.items()
        }
        self._coming: defaultdict[str, int] = defaultdict(int)
        for expert, stages in self._open.items():
            for other, parts in self._follows[expert] if stages else ():
                self._coming[other] += parts * stages
        self._rules = dict(usage)
        self._used = {expert: share * config.USAGE_IMAGES for expert, share in usage.items()}
        self._images = float(config.USAGE_IMAGES)
        self._weight = 1.0
        self._subscribers: list[dict[str, None]] = []

    def __repr__(self) -> str:
        return f"<Demand {sum(self._open.values())} open stages>"

    def subscribe(self) -> dict[str, None]:
        """Return a dict whose keys are the experts with changed numbers; the subscriber empties it."""
        book = dict.fromkeys(self._used)
        self._subscribers.append(book)
        return book

    def changed(self, expert: str) -> None:
        """Tell the subscribers that the numbers of an expert have changed; experts that no rule names have none."""
        for book in self._subscribers if expert in self._used else ():
            book[expert] = None

    def entered(self, expert: str) -> None:
        """Note that an expert came into some pool."""
        self.changed(expert)

    def left(self, expert: str) -> None:
        """Note that an expert left some pool."""
        self.changed(expert)

    def arrived(self) -> None:
        """Count an image; earlier images weigh a little less from now on."""
        self._weight *= self._growth
        self._images += self._weight
        if self._weight > _REBASE:
            for expert in self._used:
                self._used[expert] /= self._weight
            self._images /= self._weight
            self._weight = 1.0

    def opened(self, expert: str) -> None:
        """Count a stage that waits from now on."""
        self._open[expert] += 1
        self.changed(expert)
        self._used[expert] += self._weight
        for other, parts in self._follows[expert]:
            self._coming[other] += parts
            self.changed(other)

    def closed(self, expert: str, stages: int = 1) -> None:
        """Count stages that have findings, or have failed; call this after the stages that follow them were opened."""
        self._open[expert] -= stages
        self.changed(expert)
        for other, parts in self._follows[expert]:
            self._coming[other] -= parts * stages
            self.changed(other)

    def open(self, expert: str) -> int:
        """Return how many stages wait for an expert or run on it."""
        return self._open[expert]

    def coming(self, expert: str) -> float:
        """Return how many stages of an expert are expected to follow from the open stages."""
        return self._coming[expert] / _PARTS

    def usage(self, expert: str) -> float:
        """Return the estimated probability that the next image needs an expert."""
        return self._used[expert] / self._images

    def drift(self, most: int = config.DRIFTED_EXPERTS) -> list[Drift]:
        """Return the experts whose estimated usage differs most from the rules', the largest difference first."""
        drifts = [Drift(expert, rules, self.usage(expert)) for expert, rules in self._rules.items()]
        return heapq.nlargest(most, drifts, key=lambda drift: abs(drift.by))

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; raises AssertionError."""
        assert all(count >= 0 for count in self._open.values()), f"{self!r} miscounts"
        assert all(parts >= 0 for parts in self._coming.values()), f"{self!r} miscounts coming stages"
        assert not idle or not (any(self._open.values()) or any(self._coming.values())), f"{self!r} at idle"
