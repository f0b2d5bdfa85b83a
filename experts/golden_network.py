"""The network of the kind `golden`: it gives crops of (picture, reference, difference) a label and a box."""

from __future__ import annotations

import torch
from torch import nn

from experts.proposals import CELL

_WIDTHS = (32, 64, 96)
_BOX = 0.2
"""A usual distance from the middle of a crop to the border of a defect, as a share of the crop."""


class _Convolution(nn.Module):
    """A convolution of 3 x 3 pixels, a batch norm and a ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.norm(self.convolution(maps)))


class _Residual(nn.Module):
    """A convolution whose input is added to its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = _Convolution(width, width)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return maps + self.convolution(maps)


class GoldenNetwork(nn.Module):
    """Judges crops; 0.7 million parameters.

    It takes crops (n, 3, CELL, CELL), float in 0..1. It returns logits (n, 1 + labels), of which the first means
    "no defect", and boxes (n, 4): the distances from the middle of the crop to the left, top, right and bottom of the
    defect, as shares of the crop's side.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        first, second, last = _WIDTHS
        self.body = nn.Sequential(
            nn.PixelUnshuffle(2),  # half the resolution without loss: the first layers would cost most
            _Convolution(12, first),
            _Convolution(first, second, 2),
            _Residual(second),
            _Residual(second),
            _Convolution(second, last, 2),
            _Residual(last),
        )
        side = CELL // 8
        self.neck = nn.Sequential(nn.Flatten(), nn.Linear(last * side * side, 128), nn.ReLU(), nn.Dropout(0.2))
        self.label = nn.Linear(128, 1 + labels)
        self.box = nn.Linear(128, 4)
        nn.init.constant_(self.box.bias, _BOX)  # boxes that overlap the true boxes from the first step on

    def forward(self, crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and boxes."""
        features = self.neck(self.body(crops - 0.5))
        return self.label(features), self.box(features)
