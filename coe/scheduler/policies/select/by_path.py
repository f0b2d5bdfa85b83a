"""ExpertFlow's token scheduler (section 3.3) for groups: of the next two, the group whose paths need least loading."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coe import config
from coe.scheduler.backlog import Group
from coe.scheduler.executor import Executor
from coe.scheduler.policies.base import Select, World
from coe.scheduler.policies.paths import remaining


class ByPath(Select):
    """The paper regroups the tokens of two batches by path, so that each batch needs few experts.

    Here a group has one expert already, and its images have theirs to come: of the two groups at the head that with
    fewer absent experts on the paths of its next images goes first. A group is passed over once only.
    """

    def watch(self, world: World) -> None:
        self._passed: dict[str, int] = {}

    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        first_two = list(islice(executor.backlog.groups(), 2))
        if len(first_two) == 2 and self._passed.get(executor.id) != first_two[0].key:
            absent = [self._absent(group, executor, world) for group in first_two]
            if absent[1] < absent[0]:
                self._passed[executor.id] = first_two[0].key
                first_two.reverse()
        yield from first_two[:1]

    def _absent(self, group: Group, executor: Executor, world: World) -> int:
        """Return how many experts are absent that the first images of a group will need."""
        needed: set[str] = set()
        for stage in islice(group, config.PREFETCH_GROUPS):
            needed.update(remaining(world.router, world.history.under_way[stage.request_id]))
        return sum(expert not in executor.pool for expert in needed)
