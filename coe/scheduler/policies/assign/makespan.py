"""CoServe's assignment (paper section 4.2): keep the longest executor short, then add the least latency."""

from __future__ import annotations

from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Assign, World


class Makespan(Assign):
    """Chooses the executor that keeps the longest total time of all executors least.

    Ties go to the smallest additional latency, then to the executor that is done sooner, then to the first by name.
    """

    def choose(self, expert: str, world: World, now: float) -> str:
        remaining = {id: executor.remaining_s(now) for id, executor in world.executors.items()}
        ordered = sorted(remaining.values(), reverse=True)
        longest, second = ordered[0], ordered[1] if len(ordered) > 1 else 0.0

        def rank(executor: Executor) -> tuple[float, float, float, str]:
            before = remaining[executor.id]
            others = second if before == longest else longest
            added = additional_s(expert, executor, world)
            return max(before + added, others), added, before, executor.id

        return min(world.executors.values(), key=rank).id


def additional_s(expert: str, executor: Executor, world: World) -> float:
    """Predict the latency that one more stage of an expert adds to an executor, in seconds.

    Execution takes K if the backlog already holds stages of the expert, else K + B. The switch is free if the expert is
    resident or on its way, or if the backlog already holds its stages.
    """
    cost = world.costs(executor.device, expert)
    if executor.backlog.waiting(expert):
        return cost.per_image_s
    switch_s = 0.0 if expert in executor.pool else world.switch_s(executor.pool, expert)
    return cost.per_image_s + cost.base_s + switch_s
