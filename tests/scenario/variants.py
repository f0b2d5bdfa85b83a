"""A residency of the laboratory for tests: it upgrades whatever it loaded in a lesser variant."""

from coe.lab.strategies.by_load import OnMiss
from coe.scheduler.events import Why
from coe.scheduler.pool import ModelPool


class Upgraded(OnMiss):
    """Coarse at a miss, and fine again once the disk is idle."""

    def choose(self, expert: str, pool: ModelPool, why: Why, now: float) -> str:
        return "fp32" if why is Why.UPGRADE else super().choose(expert, pool, why, now)
