"""What is loaded next: the expert in no pool that most stages wait for, per second of its load."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe.policies.base import ExecutorView, Prefetch, World

Key = tuple[float, float, str]


class Gain(Prefetch):
    def watch(self, world: World) -> None:
        self._changed = world.demand.subscribe()
        self._order: SortedDict[Key, str] = SortedDict()
        self._keys: dict[str, Key] = {}
        self._pools = list({e.pool.id: e.pool for e in world.executors.values()}.values())
        self._any = next(iter(world.executors.values()))

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[str]:
        self._catch_up(world)
        yield from self._order.values()

    def _catch_up(self, world: World) -> None:
        for expert in self._changed:
            if (old := self._keys.pop(expert, None)) is not None:
                del self._order[old]
            waiting = self._any.backlog.waiting(expert)
            if waiting and not any(expert in pool for pool in self._pools):
                first = self._any.backlog.first(expert)
                assert first is not None
                cost = world.costs(self._any.device, expert)
                key = (-waiting / max(1e-9, cost.load_s), first.since_s, expert)
                self._keys[expert] = key
                self._order[key] = expert
        self._changed.clear()
