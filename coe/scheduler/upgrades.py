"""Experts that pools hold in a lesser variant, and those on their way out to come back in a finer one. No decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.policies.ranking import Ranking


class Upgrades:
    """By pool: the experts that could be finer, the likeliest first, and the expert whose finer variant comes next."""

    def __init__(self) -> None:
        self._lesser: defaultdict[str, Ranking] = defaultdict(Ranking)
        self._coming: dict[str, tuple[str, str]] = {}

    def __bool__(self) -> bool:
        """Return whether any expert could be finer."""
        return any(self._lesser.values())

    def entered(self, pool: str, expert: str, usage: float) -> None:
        """Note an expert that is in a pool in a lesser variant; `usage` is the probability that an image needs it."""
        self._lesser[pool].put(expert, -usage)

    def left(self, pool: str, expert: str) -> None:
        """Note that an expert leaves a pool."""
        self._lesser[pool].drop(expert)

    def candidates(self, pool: str) -> Iterator[str]:
        """Yield the likeliest experts of a pool that could be finer, a few of them."""
        yield from islice(self._lesser[pool], config.LOAD_CANDIDATES)

    def begin(self, pool: str, expert: str, variant: str) -> None:
        """Note that an expert leaves in order to come back in `variant`."""
        self._coming[pool] = expert, variant

    def coming(self, pool: str) -> str | None:
        """Return the expert that leaves a pool in order to come back; None if there is none."""
        return self._coming[pool][0] if pool in self._coming else None

    def end(self, pool: str, expert: str) -> str | None:
        """Return the variant in which an expert that is gone comes back; None if it just left."""
        if self.coming(pool) != expert:
            return None
        return self._coming.pop(pool)[1]
