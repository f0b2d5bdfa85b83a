"""How long batches take compared with the cost table, and a table that follows when the machine gets slower or faster.

Costs are measured once, perhaps on a quiet machine; cameras and displays may need its cores later. The correction
follows from the events of batches alone, so a recorded run replays to the same commands.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from coe import config
from coe.scheduler.costs import Cost, CostTable


class Pace:
    """The time that batches take lately, over the time that the table states: the median of the last batches.

    The median is not moved by a few batches that were held up. The value changes only in clear steps
    (`config.PACE_STEP`), because every change makes all rankings anew, and only after `config.PACE_BATCHES` more
    batches.
    """

    def __init__(self) -> None:
        self.value = 1.0
        self._ratios: deque[float] = deque(maxlen=config.PACE_BATCHES)

    def __repr__(self) -> str:
        return f"<Pace {self.value:.2f}>"

    def ran(self, stated_s: float, took_s: float) -> bool:
        """Take in a batch that has ended; return whether the value has changed."""
        # A time of 0, or one that is no number, says nothing; a median would keep the latter for ever.
        if not (0 < stated_s < math.inf and 0 < took_s < math.inf):
            return False
        self._ratios.append(took_s / stated_s)
        lately = median(self._ratios)
        if len(self._ratios) < config.PACE_BATCHES:
            return False
        if max(lately / self.value, self.value / lately) < config.PACE_STEP:
            return False
        self.value = lately
        self._ratios.clear()
        return True


class FollowingCosts(CostTable):
    """A cost table whose batches take as long as they took lately on their device. Loads are not corrected."""

    def __init__(self, stated: CostTable) -> None:
        self._stated = stated
        self._paces = {device: Pace() for device in stated.devices()}
        self._followed: dict[tuple[str, str], Cost] = {}

    def __repr__(self) -> str:
        return f"<FollowingCosts {self._paces}, {self._stated!r}>"

    def restated(self, stated: CostTable) -> CostTable:
        """Return a table of other stated costs whose devices keep their paces."""
        table = FollowingCosts(stated)
        table._paces |= self._paces
        return table

    @property
    def stated(self) -> CostTable:
        """The table without any correction."""
        return self._stated

    def __call__(self, device: str, expert: str) -> Cost:
        """Return the corrected cost; raises ConfigError if it was never measured."""
        cost = self._followed.get((device, expert))
        if cost is None:
            cost = self._followed[device, expert] = self._stated(device, expert).at_pace(self._paces[device].value)
        return cost

    def of(self, device: str, expert: str, variant: str) -> Cost:
        """Return the corrected cost of an expert in a variant."""
        return self._stated.of(device, expert, variant).at_pace(self._paces[device].value)

    def variants(self, expert: str) -> tuple[str, ...]:
        """Return the variants among which each load of an expert may choose."""
        return self._stated.variants(expert)

    def devices(self) -> list[str]:
        """Return the devices, sorted."""
        return self._stated.devices()

    def ran(self, device: str, expert: str, images: int, took_s: float) -> float | None:
        """Take in a batch; return the pace of its device if that has changed."""
        pace = self._paces[device]
        if not pace.ran(self._stated(device, expert).batch_s(images), took_s):
            return None
        self._followed = {key: cost for key, cost in self._followed.items() if key[0] != device}
        return pace.value
