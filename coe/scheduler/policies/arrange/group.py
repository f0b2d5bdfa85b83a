"""CoServe's arranging (paper section 4.2): behind the last stage of the same expert, else at the end."""

from __future__ import annotations

from coe import config
from coe.scheduler.backlog import Backlog
from coe.scheduler.policies.base import Arrange


class GroupByExpert(Arrange):
    """Stages of one expert run together.

    A group takes no more stages once it has been running for `config.GROUP_HOLD_S`, because a busy expert could hold up
    the others for ever. This bound is ours; the paper has none.
    """

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        group = backlog.latest(expert)
        return group is not None and (group.started_s is None or now - group.started_s <= config.GROUP_HOLD_S)
