"""CoServe's two-stage eviction (paper section 4.3): orphaned successors first, then the least likely to be used."""

from __future__ import annotations

from collections.abc import Iterator

from coe.policies.base import Eviction, PoolView, World


class Dependency(Eviction):
    """Stage 1: successors none of whose predecessors is in the pool, largest first. Stage 2: by usage probability."""

    def rank(self, pool: PoolView, world: World, now: float) -> Iterator[str]:
        ready = list(pool.by_arrival())
        orphans = {expert for expert in ready if world.graph.is_orphan(expert, pool)}
        yield from sorted(orphans, key=lambda expert: (-pool.size(expert), world.graph.probability(expert), expert))
        rest = (expert for expert in ready if expert not in orphans)
        yield from sorted(rest, key=lambda expert: (world.graph.probability(expert), expert))
