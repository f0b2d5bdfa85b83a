"""eMoE's request scheduling (section 3.5): what is due first goes first, with the time of its remaining path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Need, Select, World
from coe.scheduler.policies.paths import remaining


class Slack(Select):
    """Groups in a hurry by slack, the least first; then the head of the backlog.

    The slack of a group is the time until it is due, less what the rest of its most urgent image's path is expected to
    take on this device: a load for each expert that is absent, and a batch of one each. The paper expects a latency
    from the number of tokens that a task usually generates, and puts off a request that would make others late.
    """

    gives = frozenset({Need.DUE_FIRST})

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        groups = list(islice(executor.backlog.groups(), config.PREFETCH_GROUPS))
        hurried = [group for group in groups if group.due_s < math.inf]
        slack_s = {group.key: group.due_s - now - self._path_s(group, executor, world) for group in hurried}
        ordered = sorted(hurried, key=lambda group: (slack_s[group.key], group.key))
        yield from (ordered or groups)[:1]

    def _path_s(self, group: Group, executor: Executor, world: World) -> float:
        image = world.history.under_way[next(iter(group)).request_id]
        seconds = 0.0
        for expert in remaining(world.router, image):
            switch_s = 0.0 if expert in executor.pool else world.switch_s(executor.pool, expert)
            seconds += switch_s + world.costs(executor.device, expert).batch_s(1)
        return seconds
