"""Costs of experts on devices: the paper's performance matrix (section 4.5) as plain numbers."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from coe import config
from coe.errors import ConfigError


class Tier(StrEnum):
    """The places where an expert's weights may lie outside the device that runs it."""

    DISK = "disk"
    HOST = "host"


_NOT_NEGATIVE = (
    *("per_image_s", "base_s", "load_s", "copy_s"),
    *("weights_bytes", "activation_bytes", "workspace_bytes"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one expert on one device.

    A batch of n takes `per_image_s * n + base_s` (the paper's K and B) and holds
    `activation_bytes * n + workspace_bytes` in addition to the weights. The weights take `weights_bytes` while they are
    resident, and `load_s` to load from disk. `load_s` includes `copy_s` for the copy from host memory to the device, 0
    if both are the same memory. `max_batch` is where the average latency stops falling. If the expert has a body,
    which the device keeps for good, `weights_bytes`, `load_s` and `copy_s` are those of its own part alone. Raises
    ConfigError.
    """

    per_image_s: float
    base_s: float
    load_s: float
    weights_bytes: int
    activation_bytes: int
    max_batch: int = 32
    workspace_bytes: int = 0
    copy_s: float = 0.0

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"an expert cannot cost {name}={value}; it must be a number of 0 or more")
        if self.max_batch < 1:
            raise ConfigError(f"max_batch={self.max_batch} lets no image run; give at least 1")

    def batch_s(self, images: int) -> float:
        """Return the latency of a batch in seconds."""
        return self.per_image_s * images + self.base_s

    def batches_s(self, images: int) -> float:
        """Return the time that images take in the fewest batches, one after another, in seconds."""
        return self.per_image_s * images + self.base_s * math.ceil(images / self.max_batch)

    def batch_bytes(self, images: int) -> int:
        """Return the bytes that a batch holds in addition to the weights."""
        return self.activation_bytes * images + self.workspace_bytes

    @property
    def useful_batch(self) -> int:
        """The first of 1, 2, 4, ... images after which the average latency falls by less than `config.LITTLE_GAIN`.

        It is `max_batch` at most, which a quick measuring sets no lower than a few images.
        """
        enough_s, images = self.batch_s(self.max_batch) / self.max_batch / (1 - config.LITTLE_GAIN), 1
        while images < self.max_batch and self.batch_s(images) / images > enough_s:
            images *= 2
        return min(images, self.max_batch)

    def at_pace(self, pace: float) -> Cost:
        """Return this cost with batches that take `pace` times as long."""
        if pace == 1:
            return self
        return replace(self, per_image_s=self.per_image_s * pace, base_s=self.base_s * pace)

    def images_in(self, room_bytes: int) -> int:
        """Return the largest batch that holds no more than `room_bytes`, the inverse of `batch_bytes`; 0 if none fits.

        If images take no memory, a batch of any size fits.
        """
        free_bytes = room_bytes - self.workspace_bytes
        if free_bytes < 0:
            return 0
        return free_bytes // self.activation_bytes if self.activation_bytes else sys.maxsize


class Pace:
    """The time that batches take lately, over the time that the table states: the median of the last batches.

    Costs are measured once, perhaps on a quiet machine; cameras and displays may need its cores later. The value
    changes only in clear steps (`config.PACE_STEP`), because every change makes all rankings anew, and only after
    `config.PACE_BATCHES` more batches.
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
        if len(self._ratios) < config.PACE_BATCHES:
            return False
        lately = median(self._ratios)
        if max(lately / self.value, self.value / lately) < config.PACE_STEP:
            return False
        self.value = lately
        self._ratios.clear()
        return True


class CostTable:
    """Costs by device and expert.

    A table that was made by `following` corrects the times of batches, not those of loads, by the pace of each device.
    """

    def __init__(self, costs: Mapping[tuple[str, str], Cost]) -> None:
        self._stated = dict(costs)
        self._costs = self._stated
        self._paces: dict[str, Pace] = {}
        self.stated = self
        """The table without any correction."""

    def __repr__(self) -> str:
        paces = f", {self._paces}" if self._paces else ""
        return f"<CostTable {len(self._stated)} costs, devices {', '.join(self.devices())}{paces}>"

    def following(self) -> CostTable:
        """Return a table whose batches take as long as they took lately on their device (`ran`)."""
        table = CostTable(self._stated)
        table._costs, table.stated = {}, self
        table._paces = {device: Pace() for device in self.devices()}
        return table

    def restated(self, stated: CostTable) -> CostTable:
        """Return a table of other stated costs whose devices keep their paces, if this table follows."""
        if not self._paces:
            return stated
        table = stated.following()
        table._paces |= self._paces
        return table

    def __call__(self, device: str, expert: str) -> Cost:
        """Return the cost of an expert on a device; raises ConfigError if it was never measured."""
        try:
            return self._costs[device, expert]
        except KeyError:
            if (stated := self._stated.get((device, expert))) is None:
                raise ConfigError(f"no cost is known for expert '{expert}' on device '{device}'") from None
        # Corrected when it is asked for: few of hundreds of experts are asked for between two changes of a pace.
        cost = self._costs[device, expert] = stated.at_pace(self._paces[device].value)
        return cost

    def ran(self, device: str, expert: str, images: int, took_s: float) -> float | None:
        """Take in a batch that took `took_s`; return the pace of its device if that has changed.

        None always, if this table does not follow.
        """
        pace = self._paces.get(device)
        if pace is None or not pace.ran(self._stated[device, expert].batch_s(images), took_s):
            return None
        self._costs.clear()
        return pace.value

    def devices(self) -> list[str]:
        """Return the devices, sorted."""
        return sorted({device for device, _ in self._stated})
