"""The variant that was chosen before the line began, whatever happens."""

from __future__ import annotations

from coe.scheduler.events import Why
from coe.scheduler.policies.base import Precision
from coe.scheduler.pool import ModelPool


class Stated(Precision):
    """Each expert always has the variant of the board: so findings do not depend on the order of loads."""

    varies = False

    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        return self.world.graph.experts[expert].variant
