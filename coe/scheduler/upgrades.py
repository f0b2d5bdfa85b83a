"""Experts that pools hold in a lesser variant, and those on their way out to come back in a finer one. No decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice

from coe import config
from coe.scheduler.policies.ranking import Ranking


@dataclass(frozen=True, slots=True)
class _Coming:
    """An expert that leaves a pool in order to come back in a finer variant."""

    pool: str
    expert: str
    variant: str


class Upgrades:
    """By pool: the experts that could be finer, the likeliest first. One expert at a time leaves to come back finer."""

    def __init__(self) -> None:
        self._lesser: defaultdict[str, Ranking] = defaultdict(Ranking)
        self._coming: _Coming | None = None

    def __bool__(self) -> bool:
        """Return whether any expert could be finer."""
        return any(self._lesser.values())

    def entered(self, pool: str, expert: str, usage: float) -> None:
        """Note an expert that is in a pool in a lesser variant; `usage` is the probability that an image needs it."""
        self._lesser[pool].put(expert, -usage)

    def name(self, experts: Container[str]) -> None:
        """Forget experts that are not among these: no rule names them any more."""
        for ranking in self._lesser.values():
            for expert in [expert for expert in ranking if expert not in experts]:
                ranking.drop(expert)

    def left(self, pool: str, expert: str) -> None:
        """Note that an expert leaves a pool."""
        self._lesser[pool].drop(expert)

    def candidates(self, pool: str) -> Iterator[str]:
        """Yield the likeliest experts of a pool that could be finer, a few of them."""
        yield from islice(self._lesser[pool], config.LOAD_CANDIDATES)

    def is_under_way(self) -> bool:
        """Return whether an expert leaves in order to come back."""
        return self._coming is not None

    def begin(self, pool: str, expert: str, variant: str) -> None:
        """Note that an expert leaves in order to come back in `variant`."""
        self._coming = _Coming(pool, expert, variant)

    def coming(self, pool: str) -> str | None:
        """Return the expert that leaves a pool in order to come back; None if there is none."""
        return self._coming.expert if self._coming is not None and self._coming.pool == pool else None

    def end(self, pool: str, expert: str) -> str | None:
        """Return the variant in which an expert that is gone comes back; None if it just left."""
        if self._coming is None or self.coming(pool) != expert:
            return None
        coming, self._coming = self._coming, None
        return coming.variant

    def stop(self) -> None:
        """Let the expert that leaves stay away."""
        self._coming = None

    def lose(self, pool: str) -> None:
        """Forget a pool whose device is lost."""
        self._lesser.pop(pool, None)
        if self.coming(pool) is not None:
            self._coming = None
