"""CoServe's assignment (paper section 4.2): keep the longest executor short, then add the least latency."""

from __future__ import annotations

from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Assign, World


class Makespan(Assign):
    """The executor for which the longest total time over all is least; ties go to the smallest additional latency.

    Further ties go to the executor that is done sooner, then to the first by name.
    """

    def choose(self, expert: str, world: World, now: float) -> str:
        remaining = {id: executor.remaining_s(now) for id, executor in world.executors.items()}
        ordered = sorted(remaining.values(), reverse=True)
        longest, second = ordered[0], ordered[1] if len(ordered) > 1 else 0.0

        def rank(executor: Executor) -> tuple[float, float, float, str]:
            own = remaining[executor.id]
            others = second if own == longest else longest
            added = additional_s(expert, executor, world)
            return max(own + added, others), added, own, executor.id

        return min(world.executors.values(), key=rank).id


def additional_s(expert: str, executor: Executor, world: World) -> float:
    """Predict the latency that one more stage of an expert adds to an executor, in seconds.

    Execution is K if the backlog holds the expert already, else K + B. The switch is free if the expert is resident,
    on its way, or awaited in the backlog anyway.
    """
    cost = world.costs(executor.device, expert)
    if executor.backlog.waiting(expert):
        return cost.per_image_s
    switch_s = 0.0 if expert in executor.pool else cost.load_s
    return cost.per_image_s + cost.base_s + switch_s
