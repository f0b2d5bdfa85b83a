"""Late binding: an idle executor takes from all that waits for experts of its pool, the fullest batch first."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from coe import config
from coe.policies.base import ExecutorView, GroupView, Select, World

Key = tuple[float, float, str]


class Ready(Select):
    """Of full batches the one that waits longest, then by size: a batch that is not full may still grow.

    While absent experts are wanted, what is cheapest to give up for them goes first, so that no load waits for room.
    """

    def watch(self, world: World) -> None:
        self._changed = world.demand.subscribe()
        self._orders: dict[str, SortedDict[Key, str]] = {e.pool.id: SortedDict() for e in world.executors.values()}
        self._cheap: dict[str, SortedDict[Key, str]] = {e.pool.id: SortedDict() for e in world.executors.values()}
        self._keys: dict[tuple[str, str], Key] = {}
        self._ckeys: dict[tuple[str, str], Key] = {}
        self._pools = {e.pool.id: e for e in world.executors.values()}
        self._absent: set[str] = set()

    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[GroupView]:
        self._catch_up(world)
        pool = executor.pool.id
        if self._absent:
            for expert in self._cheap[pool].values():
                group = executor.backlog.first(expert)
                if group is not None:
                    yield group
                break
        for expert in self._orders[executor.pool.id].values():
            group = executor.backlog.first(expert)
            assert group is not None
            yield group

    def _catch_up(self, world: World) -> None:
        for expert in self._changed:
            here = False
            for id, executor in self._pools.items():
                old = self._keys.pop((id, expert), None)
                if old is not None:
                    del self._orders[id][old]
                old = self._ckeys.pop((id, expert), None)
                if old is not None:
                    del self._cheap[id][old]
                waiting = executor.backlog.waiting(expert)
                if expert in executor.pool:
                    here = True
                    cost = world.costs(executor.device, expert)
                    need = world.demand.coming(expert) + config.OUTLOOK_IMAGES * world.demand.usage(expert)
                    key = ((need * cost.load_s + waiting * cost.per_image_s) / cost.weights_bytes, 0.0, expert)
                    self._ckeys[id, expert] = key
                    self._cheap[id][key] = expert
                    if waiting:
                        first = executor.backlog.first(expert)
                        assert first is not None
                        key = (-min(1.0, waiting / cost.max_batch), first.since_s, expert)
                        self._keys[id, expert] = key
                        self._orders[id][key] = expert
            if waiting and not here:
                self._absent.add(expert)
            else:
                self._absent.discard(expert)
        self._changed.clear()
