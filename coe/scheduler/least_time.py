"""The least time that waiting stages can still take: what is late by it no decision can save."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from coe.core import Stage
from coe.scheduler.cases import Cases
from coe.scheduler.costs import Cost, Tier
from coe.scheduler.expert_state import State
from coe.scheduler.policies.base import World


class LeastTime:
    """The least time that stages can still take in any order, by the cost table: a board that is late by it is late.

    It leaves out stages that the findings will lead to, because they are not known yet.
    """

    def __init__(self, world: World, cases: Cases) -> None:
        self._cases = cases
        self.follow(world)

    def follow(self, world: World) -> None:
        """Go on by another world, of other rules."""
        self._world, self._costs, self._executors = world, world.costs, world.executors
        self._pools = {executor.pool.id: executor.pool for executor in world.executors.values()}

    def too_late_s(self, dues: Mapping[int, float], now: float) -> float:
        """Return the time after which one of these requests is certain to miss its due time, as things stand.

        Two bounds count: each stage must run, at best alone; and the lanes and executors together must load and run all
        of them.
        """
        ends_s = {
            stage: flight.until_s
            for executor in self._executors.values()
            for flight in executor.flights
            for stage in flight.batch.stages
        }
        alone_s: dict[str, float] = {}
        waiting: Counter[str] = Counter()
        too_late_s = math.inf
        for request_id, due_s in dues.items():
            for expert in self._cases.awaits(request_id):
                end_s = ends_s.get(Stage(request_id, expert))
                if end_s is None:
                    waiting[expert] += 1
                    if expert not in alone_s:
                        alone_s[expert] = self._alone_s(expert, now)
                    too_late_s = min(too_late_s, due_s - alone_s[expert])
                else:
                    too_late_s = min(too_late_s, due_s - max(0.0, end_s - now))
        return min(too_late_s, max(dues.values()) - self._together_s(waiting))

    def _alone_s(self, expert: str, now: float) -> float:
        """Return the time until a waiting stage has run, alone, on the executor that would be done first."""
        least_s = math.inf
        for executor in self._executors.values():
            cost = self._costs(executor.device, expert)
            busy_s = executor.idle_from_s(now) - now
            here = executor.pool.state(expert) in (State.READY, State.LOADING)
            load_s = 0.0 if here else self._world.switch_s(executor.pool, expert)
            least_s = min(least_s, max(busy_s, load_s) + cost.batch_s(1))
        return least_s

    def _together_s(self, waiting: Mapping[str, int]) -> float:
        """Return the time until all waiting stages have been loaded for and run, if nothing ever pauses."""
        reads_s = copies_s = work_s = 0.0
        for expert, stages in waiting.items():
            costs = [self._costs(pool.device, expert) for pool in self._pools.values()]
            work_s += min(cost.batches_s(stages) for cost in costs)
            if not any(expert in pool for pool in self._pools.values()):
                # Bodies count for nothing, because many of these experts may share one.
                copies_s += min(cost.copy_s for cost in costs)
                reads = zip(self._pools.values(), costs, strict=True)
                reads_s += min(self._read_s(pool.device, expert, cost) for pool, cost in reads)
        return max(max(reads_s, copies_s) / len(self._pools), work_s / len(self._executors))

    def _read_s(self, device: str, expert: str, cost: Cost) -> float:
        return 0.0 if self._world.source(device, expert) is Tier.HOST else cost.load_s - cost.copy_s
