"""DuoServe's two phases (sections 5.2 and 5.3): by expert in a burst, by age in a trickle."""

from __future__ import annotations

from coe import config
from coe.scheduler.backlog import Backlog
from coe.scheduler.policies.base import Arrange

_BURST = 8
"""From how many waiting stages on it is a burst: as many as fill a batch of the paper's boxes."""


class Phased(Arrange):
    """In a burst a stage joins the group of its expert, as the paper's prefill; in a trickle it goes to the end.

    As with `group`, a group takes no more stages once it has been running for `config.GROUP_HOLD_S`.
    """

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        group = backlog.latest(expert)
        if group is None or len(backlog) < _BURST:
            return False
        return group.started_s is None or now - group.started_s <= config.GROUP_HOLD_S
