"""The network of the kind `difference`: two numbers."""

from __future__ import annotations

import torch
from torch import nn

from coe.store.outputs import unhidden
from experts.backbone import smooth

LIMIT, UNIT = 64.0, 8.0
"""The limit and its unit, in grey levels, of an expert that was not calibrated."""


class DifferenceNetwork(nn.Module):
    """Scores each pixel: 0.5 at the limit, and more for a greater difference. `limit` is for pictures without one."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = nn.Parameter(torch.tensor([LIMIT]))
        self.unit = nn.Parameter(torch.tensor([UNIT]))

    def forward(self, difference: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
        """Return scores (n, H, W) of differences (n, 1, H, W) in grey levels, with limits (n, 1, 1, 1), 0 for none."""
        limits = torch.where(limits > 0, limits, self.limit)
        return torch.sigmoid(unhidden((smooth(difference) - limits) / self.unit))[:, 0]
