"""What each expert is wanted for: what waits, what its predecessors will send, and how often images need it.

It counts and estimates; what is loaded, evicted or run for it is decided elsewhere. Whoever keeps a ranking subscribes
and is told which experts' numbers changed, so that nothing is ranked anew that stayed the same.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from coe import config

_PARTS = 1 << 20
"""Shares are counted in whole parts of this, so that what is added and taken away again leaves nothing behind."""
_REBASE = 2.0**64
"""How heavy the newest image may become before all weights are divided by it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How often an image needs an expert: by the rules, and as estimated from the images that came."""

    expert: str
    rules: float
    estimated: float

    @property
    def by(self) -> float:
        """The estimate less what the rules say."""
        return self.estimated - self.rules


class Demand:
    """The stages that are open (waiting or running), and what is expected of them and of images to come.

    `follows` tells for an expert how many stages of others one stage of it leads to; `usage` is the rules' probability
    that an image needs an expert. That counts as much as `config.USAGE_IMAGES` images seen; with each image that comes,
    what was before weighs a little less, so that another product on the line is noticed.
    """

    def __init__(self, usage: Mapping[str, float], follows: Mapping[str, Mapping[str, float]]) -> None:
        self._follows = {
            expert: tuple((other, round(share * _PARTS)) for other, share in others.items())
            for expert, others in follows.items()
        }
        self._open: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        self._rules = dict(usage)
        self._used = {expert: share * config.USAGE_IMAGES for expert, share in usage.items()}
        self._images = float(config.USAGE_IMAGES)
        self._weight = 1.0
        self._growth = 1 + 1 / config.USAGE_IMAGES
        self._subscribers: list[dict[str, None]] = []

    def __repr__(self) -> str:
        return f"<Demand {self._open.total()} open stages>"

    def subscribe(self) -> dict[str, None]:
        """Return a book into which experts are written whose numbers may have changed; its owner empties it."""
        book = dict.fromkeys(self._used)
        self._subscribers.append(book)
        return book

    def changed(self, expert: str) -> None:
        """Tell the subscribers that something about an expert is otherwise than before."""
        for book in self._subscribers:
            book[expert] = None

    def entered(self, expert: str) -> None:
        """Note that an expert came into some pool."""
        self.changed(expert)

    def left(self, expert: str) -> None:
        """Note that an expert left some pool."""
        self.changed(expert)

    def arrived(self) -> None:
        """Count an image; those before it weigh a little less from now on."""
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

    def closed(self, expert: str) -> None:
        """Count a stage that has its finding, or failed; what follows it was opened before."""
        self._open[expert] -= 1
        self.changed(expert)
        for other, parts in self._follows[expert]:
            self._coming[other] -= parts
            self.changed(other)

    def open(self, expert: str) -> int:
        """Return how many stages wait for an expert or run on it."""
        return self._open[expert]

    def coming(self, expert: str) -> float:
        """Return how many stages of an expert are expected to follow from what is open now."""
        return self._coming[expert] / _PARTS

    def usage(self, expert: str) -> float:
        """Return the estimated probability that the next image needs an expert."""
        return self._used[expert] / self._images

    def drift(self, most: int = config.DRIFTED_EXPERTS) -> list[Drift]:
        """Return the experts whose estimated usage differs most from the rules', the one furthest off first."""
        all_of_them = [Drift(expert, rules, self.usage(expert)) for expert, rules in self._rules.items()]
        return heapq.nlargest(most, all_of_them, key=lambda one: abs(one.by))

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; raises AssertionError."""
        assert all(count >= 0 for count in self._open.values()), f"{self!r} miscounts"
        assert all(parts >= 0 for parts in self._coming.values()), f"{self!r} miscounts what is to come"
        assert not idle or not (self._open.total() or self._coming.total()), f"{self!r} at idle"
