"""The network of the kind `golden`: it gives crops of (picture, reference, difference) a label and a box."""

from __future__ import annotations

import torch
from torch import nn

from experts.proposals import CELL

_WIDTHS = (32, 48, 64, 96)
_HIDDEN = 128
_BOX = 0.2
"""A usual distance from the middle of a crop to the border of a defect, as a share of the crop."""


class _Convolution(nn.Module):
    """A convolution, a batch norm and a ReLU."""

    def __init__(self, inputs: int, outputs: int, side: int = 3, padding: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, side, padding=padding, bias=False)
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
        first, second, third, last = _WIDTHS
        self.body = nn.Sequential(
            nn.PixelUnshuffle(2),  # half the resolution without loss: the first layers would cost most
            _Convolution(12, first),
            nn.AvgPool2d(2),  # a convolution with a stride of 2 takes longer to train on a CPU
            _Convolution(first, second),
            nn.AvgPool2d(2),
            _Convolution(second, third),
            _Residual(third),
            _Residual(third),
            nn.AvgPool2d(2),
            _Convolution(third, last),
            _Residual(last),
        )
        self.label = _head(1 + labels)
        self.box = _head(4)
        last_layer = self.box[-1]
        assert isinstance(last_layer, nn.Linear)
        nn.init.constant_(last_layer.bias, _BOX)  # boxes that overlap the true boxes from the first step on

    def forward(self, crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and boxes."""
        features = self.body(crops - 0.5)
        return self.label(features), self.box(features)


def _head(outputs: int) -> nn.Sequential:
    """Return what judges the whole of a crop. Without its norm, the gradient of the boxes soon kills most features."""
    whole = _Convolution(_WIDTHS[-1], _HIDDEN, CELL // 16, padding=0)
    return nn.Sequential(whole, nn.Flatten(), nn.Dropout(0.2), nn.Linear(_HIDDEN, outputs))
