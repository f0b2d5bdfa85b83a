"""CoServe's splitting (paper section 4.2): what free memory allows, at most the profiled maximum."""

from __future__ import annotations

from coe.scheduler.backlog import Group
from coe.scheduler.costs import Cost
from coe.scheduler.policies.base import Split


class Profiled(Split):
    """The smaller of the largest batch that fits and the batch at which the average latency plateaus."""

    def size(self, group: Group, cost: Cost, room_bytes: int) -> int:
        return min(len(group), cost.max_batch, cost.images_in(room_bytes))
