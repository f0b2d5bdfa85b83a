"""What is loaded next: the expert in no pool by which most is gained, for each second of its load."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe import config
from coe.policies.base import ExecutorView, Prefetch, World

Key = tuple[float, float, str]
Age = tuple[float, str]


class Gain(Prefetch):
    """What is gained are the stages that wait, less what would have to be loaded for again.

    An expert that more images are likely to need gains by waiting, for then it runs them all in one stay. What is
    urgent goes before, the oldest first.
    """

    def watch(self, world: World) -> None:
        self._changed = world.demand.subscribe()
        self._executors = list({e.pool.id: e for e in world.executors.values()}.values())
        self._order: SortedDict[Key, str] = SortedDict()
        self._ages: SortedDict[Age, str] = SortedDict()
        self._keys: dict[str, Key] = {}

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[str]:
        self._catch_up(world)
        urgent_s = world.urgent_s(now)
        for since_s, expert in self._ages:
            if since_s > urgent_s:
                break
            yield expert
        yield from (expert for (_, since_s, expert) in self._order if since_s > urgent_s)

    def _catch_up(self, world: World) -> None:
        backlog = self._executors[0].backlog
        for expert in self._changed:
            if (old := self._keys.pop(expert, None)) is not None:
                del self._order[old]
                del self._ages[old[1:]]
            group = backlog.first(expert)
            if group is not None and not any(expert in executor.pool for executor in self._executors):
                load_s = min(world.costs(executor.device, expert).load_s for executor in self._executors)
                later = config.OUTLOOK_IMAGES * world.demand.usage(expert) + world.demand.coming(expert)
                gain = backlog.waiting(expert) / (1 + later)
                self._keys[expert] = key = (-gain / max(load_s, 1e-9), group.since_s, expert)
                self._order[key] = expert
                self._ages[key[1:]] = expert
        self._changed.clear()
