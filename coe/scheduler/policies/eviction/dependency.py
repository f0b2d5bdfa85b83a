"""CoServe's two-stage eviction (paper section 4.3): orphaned successors first, then the least likely experts.

The largest orphan is the one that frees most bytes: an expert that is the last to hold its body frees that, too.

The paper evicts orphans first "since these experts are not executed until their preliminary experts are fully loaded".
An expert with which the inspection of a component begins runs at once, so it is no orphan, even if it follows other
experts in the rules of another component.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from sortedcontainers import SortedDict

from coe.scheduler.policies.base import Eviction, World
from coe.scheduler.pool import ModelPool


class Dependency(Eviction):
    """Stage 1: experts that wait for predecessors none of which is in the pool, largest first. Stage 2: by probability.

    Both rankings are kept up to date as experts come and go, so that a decision costs the same in a pool of ten and
    of ten thousand.
    """

    def watch(self, pool: ModelPool, world: World) -> None:
        self._pool, self._graph = pool, world.graph
        self._backed: Counter[str] = Counter()
        """For each expert, in the pool or not, how many of its predecessors are in the pool."""
        self._orphans: SortedDict[tuple[int, float, str], str] = SortedDict()
        self._orphan_keys: dict[str, tuple[int, float, str]] = {}
        self._others: SortedDict[tuple[float, str], str] = SortedDict()

    def entered(self, expert: str) -> None:
        self._place(expert)
        for successor in self._graph.successors(expert):
            self._backed[successor] += 1
            if self._backed[successor] == 1 and successor in self._pool:
                self._no_orphan(successor)
                self._place(successor)

    def left(self, expert: str) -> None:
        self._no_orphan(expert)
        self._others.pop(self._as_other(expert), None)
        for successor in self._graph.successors(expert):
            self._backed[successor] -= 1
            if not self._backed[successor] and successor in self._pool:
                self._others.pop(self._as_other(successor), None)
                self._place(successor)

    def changed(self, expert: str) -> None:
        if expert in self._orphan_keys:
            self._no_orphan(expert)
            self._place(expert)

    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        return chain(self._orphans.values(), self._others.values())

    def _place(self, expert: str) -> None:
        if self._graph.waits_for_others(expert) and not self._backed[expert]:
            key = self._orphan_keys[expert] = (-self._pool.frees(expert), self._graph.probability(expert), expert)
            self._orphans[key] = expert
        else:
            self._others[self._as_other(expert)] = expert

    def _no_orphan(self, expert: str) -> None:
        if (key := self._orphan_keys.pop(expert, None)) is not None:
            del self._orphans[key]

    def _as_other(self, expert: str) -> tuple[float, str]:
        return self._graph.probability(expert), expert
