"""What things cost: the paper's performance matrix (section 4.5) as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coe.errors import ConfigError


class Tier(StrEnum):
    """Where an expert's weights may lie outside the device that runs it."""

    DISK = "disk"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one expert on one device.

    A batch of n takes `per_image_s * n + base_s` (the paper's K and B) and holds
    `activation_bytes * n + workspace_bytes` beside the weights, which take `weights_bytes` while resident and
    `load_s` to load from disk; `copy_s` of these go from host memory to the device, none where these are one.
    `max_batch` is where the average latency stops falling.
    """

    per_image_s: float
    base_s: float
    load_s: float
    weights_bytes: int
    activation_bytes: int
    max_batch: int = 32
    workspace_bytes: int = 0
    copy_s: float = 0.0

    def batch_s(self, images: int) -> float:
        """Return the latency of a batch in seconds."""
        return self.per_image_s * images + self.base_s

    def load_from_s(self, tier: Tier) -> float:
        """Return the seconds of a load of weights that lie in a tier."""
        return self.load_s if tier is Tier.DISK else self.copy_s

    def batch_bytes(self, images: int) -> int:
        """Return the bytes that a batch holds beside the weights."""
        return self.activation_bytes * images + self.workspace_bytes


class CostTable:
    """Costs by device and expert."""

    def __init__(self, costs: Mapping[tuple[str, str], Cost]) -> None:
        self._costs = dict(costs)

    def __repr__(self) -> str:
        return f"<CostTable {len(self._costs)} costs, devices {', '.join(self.devices())}>"

    def __call__(self, device: str, expert: str) -> Cost:
        """Return the cost of an expert on a device; raises ConfigError if it was never measured."""
        try:
            return self._costs[device, expert]
        except KeyError:
            raise ConfigError(f"no cost is known for expert '{expert}' on device '{device}'") from None

    def devices(self) -> list[str]:
        """Return the devices, sorted."""
        return sorted({device for device, _ in self._costs})
