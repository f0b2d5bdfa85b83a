"""The network of the kind `golden`: it finds defects in crops of (picture, reference, difference)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from coe.store.outputs import unhidden
from experts.proposals import CELL

STRIDE = 4
"""Pixels of a crop from one place that the network judges to the next."""
SIDE = CELL // STRIDE
"""Places in a row of a crop."""
WIDTHS = (32, 48, 96, 128)
"""Channels at a half, a quarter, an eighth and a sixteenth of the resolution."""
_RARE = 0.01
"""The score of every label at the start: most places show no defect."""
_BOX = 0.2
"""A usual distance from the middle of a defect to its border, as a share of the crop."""

PEAKS = 8
"""The most defects that are looked for in one crop."""


class _Convolution(nn.Module):
    """A convolution, a batch norm and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
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
    """Finds defects in crops; 0.8 million parameters.

    It takes crops (n, 3, CELL, CELL), float in 0..1. It returns logits (n, labels, SIDE, SIDE), which are high at the
    middle of a defect, and boxes (n, 4, SIDE, SIDE): the distances from the middle of the place to the left, top, right
    and bottom of the defect, as shares of the crop's side.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        first, fine, middle, coarse = WIDTHS
        self.fine = nn.Sequential(
            nn.PixelUnshuffle(2),  # half the resolution without loss: the first layers would cost most
            _Convolution(12, first),
            nn.AvgPool2d(2),  # a convolution with a stride of 2 takes longer to train on a CPU
            _Convolution(first, fine),
            _Residual(fine),
        )
        self.middle = nn.Sequential(nn.AvgPool2d(2), _Convolution(fine, middle), _Residual(middle))
        self.coarse = nn.Sequential(nn.AvgPool2d(2), _Convolution(middle, coarse), _Residual(coarse))
        self.to_middle = nn.Sequential(_Convolution(middle + coarse, middle), _Residual(middle))
        self.to_fine = _Convolution(fine + middle, fine)
        self.judging = _Convolution(fine, fine)
        self.label, self.box = (nn.Conv2d(fine, outputs, 1) for outputs in (labels, 4))
        for last, start in ((self.label, -math.log(1 / _RARE - 1)), (self.box, _BOX)):
            assert last.bias is not None
            nn.init.normal_(last.weight, std=0.01)
            nn.init.constant_(last.bias, start)  # boxes that overlap the true boxes from the first step on

    def forward(self, crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fine = self.fine(crops - 0.5)
        middle = self.middle(fine)
        middle = self.to_middle(torch.cat((middle, _larger(self.coarse(middle))), dim=1))
        fine = self.judging(self.to_fine(torch.cat((fine, _larger(middle)), dim=1)))
        return self.label(fine), self.box(fine)


def _larger(maps: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(maps, scale_factor=2.0, mode="nearest")


def peaks(logits: torch.Tensor, boxes: torch.Tensor, most: int, reach: int) -> torch.Tensor:
    """Return (n, most, labels + 4) for outputs of the network: scores and a box of the best places of each crop.

    A place counts if it is better than those around it and lies at most `reach` pixels beside the middle of its crop;
    the rows that are left over score 0. A box is the distances from the middle of the crop to the left, top, right and
    bottom, as shares of the crop's side.
    """
    scores, boxes = unhidden(logits.float()).sigmoid(), boxes.float()  # in 16 bits neighbours often have equal scores
    best = scores.amax(dim=1, keepdim=True)
    near = (torch.arange(SIDE, device=logits.device) - (SIDE - 1) / 2).abs() * STRIDE <= reach
    counts = (best == functional.max_pool2d(best, 3, 1, 1)) & near & near[:, None]
    places = (best * counts).flatten(1).topk(most, dim=1).indices
    found = torch.cat((scores * counts, boxes), dim=1).flatten(2)
    rows = found.gather(2, places[:, None].expand(-1, found.shape[1], -1)).transpose(1, 2)
    down, right = ((index + 0.5) / SIDE - 0.5 for index in (places // SIDE, places % SIDE))
    away = torch.stack((-right, -down, right, down), dim=2)
    return torch.cat((rows[..., :-4], rows[..., -4:] + away), dim=2)
