"""HOBBIT's low precision at a miss (section 3.2): what must be read while the line runs is read in few bytes."""

from __future__ import annotations

from coe.scheduler.events import Why
from coe.scheduler.policies.base import Precision
from coe.scheduler.pool import ModelPool


class OnMiss(Precision):
    """The coarsest variant at every load of the run, full precision before it begins; nothing is upgraded.

    HOBBIT weighs by the gate's output how much an expert matters to a token. A component has one expert for a step, so
    none matters less than another here; what counts is that the coarse variant was measured to say the same labels.
    """

    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        variants = self.world.costs.variants(expert)
        return variants[0] if why is Why.INITIAL else variants[-1]
