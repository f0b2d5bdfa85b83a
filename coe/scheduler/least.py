"""The least time that stages can still take by the cost table, in whatever order: what is late by it is late."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from coe.core import Stage
from coe.scheduler.cases import Cases
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.executor import Executor
from coe.scheduler.pool import State


class Least:
    """Looks at what images still wait for. It leaves out what cannot be known: what their findings will lead to."""

    def __init__(self, costs: CostTable, executors: Mapping[str, Executor], cases: Cases) -> None:
        self._costs, self._executors, self._cases = costs, executors, cases
        self._pools = {executor.pool.id: executor.pool for executor in executors.values()}

    def doomed_s(self, dues: Mapping[int, float], now: float) -> float:
        """Return from when on it is certain, as things stand, that one of these requests is not done when it is due.

        Each of their stages has to run, alone at best; and all of them together have to be loaded for and run by as
        many lanes and executors as there are.
        """
        ends_s = {
            stage: executor.busy_until_s
            for executor in self._executors.values()
            if executor.batch is not None
            for stage in executor.batch.stages
        }
        alone_s: dict[str, float] = {}
        waiting: Counter[str] = Counter()
        doomed_s = math.inf
        for request_id, due_s in dues.items():
            for expert in self._cases.awaits(request_id):
                end_s = ends_s.get(Stage(request_id, expert))
                if end_s is None:
                    waiting[expert] += 1
                    if expert not in alone_s:
                        alone_s[expert] = self._alone_s(expert, now)
                    doomed_s = min(doomed_s, due_s - alone_s[expert])
                else:
                    doomed_s = min(doomed_s, due_s - max(0.0, end_s - now))
        return min(doomed_s, max(dues.values()) - self._together_s(waiting))

    def _alone_s(self, expert: str, now: float) -> float:
        """Return the time until one stage that waits has run on the executor where that is soonest."""
        least_s = math.inf
        for executor in self._executors.values():
            cost = self._costs(executor.device, expert)
            busy_s = max(0.0, executor.busy_until_s - now) if executor.batch else 0.0
            load_s = 0.0 if executor.pool.state(expert) in (State.READY, State.LOADING) else cost.load_s
            least_s = min(least_s, max(busy_s, load_s) + cost.batch_s(1))
        return least_s

    def _together_s(self, waiting: Mapping[str, int]) -> float:
        """Return the time until all that waits has been loaded for and run, if nothing ever stood still."""
        loads_s = work_s = 0.0
        for expert, stages in waiting.items():
            costs = [self._costs(pool.device, expert) for pool in self._pools.values()]
            work_s += min(_batches_s(cost, stages) for cost in costs)
            if not any(expert in pool for pool in self._pools.values()):
                loads_s += min(cost.load_s for cost in costs)
        return max(loads_s / len(self._pools), work_s / len(self._executors))


def _batches_s(cost: Cost, stages: int) -> float:
    return cost.base_s * math.ceil(stages / cost.max_batch) + cost.per_image_s * stages
