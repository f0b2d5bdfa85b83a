"""Colours of aligned good parts: the range of what they show at each place and around it, and how far a part leaves it.

A colour is brightness, red less green, and blue less both (opponent colours; Ohta et al., 1980): a lead without solder
is no brighter than others, and no good one is red. How far parts leave the range of others says what each of the three
is worth: among good parts of boards of several colours a new one is less strange. Where most of a picture leaves the
range, that is the board or the light, not a place: if good parts differ so, it does not count.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from coe.helpers.rates import prediction_factor
from experts.backbone import smooth

COLOURS = 112
"""The side of the grid of colours."""
_STEP = 2.0
"""The grey levels of a step of a range's ends, which are kept in 8 bits."""
_LEAST = 0.2
"""So much of what good parts usually leave the range by is as good as none."""
_ALL = 255.0
"""More steps than colours lie apart."""
_APART = 4
"""Of so many places across and down one says what most of a picture shows."""


class Colours(nn.Module):
    """The colours that aligned good parts show.

    `least` and `most` (3, COLOURS, COLOURS) int8 are the ends of their ranges, in steps, and `usual` (3) is by how much
    others leave them. The numbers of alternates follow each other along the first axis.
    """

    least: torch.Tensor
    most: torch.Tensor
    usual: torch.Tensor

    def __init__(self, alternates: int = 1) -> None:
        super().__init__()
        self.alternates = alternates
        ends = (3 * alternates, COLOURS, COLOURS)
        self.register_buffer("least", torch.full(ends, -128, dtype=torch.int8))
        self.register_buffer("most", torch.full(ends, 127, dtype=torch.int8))
        self.register_buffer("usual", torch.ones(3 * alternates))

    def learn(self, shown: torch.Tensor, parts: torch.Tensor, leeway: float) -> None:
        """Take the ranges of pictures of one look, (n, 3, COLOURS, COLOURS), of parts of these numbers, (n,)."""
        least, most = ranges(shown)
        self.least.copy_(least)
        self.most.copy_(most)
        self.usual.copy_(usual_of(outside_of_others(shown, parts, leeway)))

    def strange(self, shown: torch.Tensor, leeway: torch.Tensor | float, alternate: int) -> torch.Tensor:
        """Return the logarithms (n, COLOURS, COLOURS) of how far parts (n, 3, ...) leave the ranges of an alternate."""
        least, most, usual = (one.chunk(self.alternates)[alternate] for one in (self.least, self.most, self.usual))
        return colour_logarithms(_outside(shown, least, most, leeway), usual.float())


def colours(images: torch.Tensor) -> torch.Tensor:
    """Return the colours (n, 3, COLOURS, COLOURS) of images (n, 3, S, S) uint8 RGB, in steps."""
    red, green, blue = smooth(functional.adaptive_avg_pool2d(images.float(), COLOURS)).unbind(dim=1)
    brightness = (red + green + blue) / 3 - 128
    return torch.stack((brightness, red - green, blue - (red + green) / 2), dim=1) / _STEP


def ranges(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return least and most int8 (3, COLOURS, COLOURS) of what parts (n, 3, ...) show at a place and next to it."""
    least, most = _around(shown)
    return _kept(least.amin(dim=0)), _kept(most.amax(dim=0))


def leeway_of(shown: torch.Tensor, share: float) -> float:
    """Return by how much most of a picture may leave the ranges of good parts (n, 3, ...), in steps.

    A `share` of good parts exceeds it (a prediction limit), each judged by the half of the others that look least like
    it: several parts of one board would hide that boards differ.
    """
    least, most = _around(shown)
    looks = shown.flatten(2).mean(dim=2)
    far = []
    for place, apart in enumerate(torch.cdist(looks, looks)):
        unlike = apart.argsort(descending=True)[: (len(shown) - 1) // 2]
        ends = _kept(least[unlike].amin(dim=0)), _kept(most[unlike].amax(dim=0))
        far.append(_mostly(_sides(shown[place : place + 1], *ends)).norm())
    logs = torch.stack(far).log1p().double()
    factor = prediction_factor(len(logs), share)
    return min(float((logs.mean() + factor * logs.std()).expm1()), _ALL)


def outside_of_others(shown: torch.Tensor, parts: torch.Tensor, leeway: float) -> torch.Tensor:
    """Return by how much colours (n, 3, ...) leave the range of the pictures of other parts, whose numbers are (n,)."""
    least, most = _around(shown)
    left = torch.empty_like(shown)
    for part in parts.unique():
        own = parts == part
        ends = _kept(least[~own].amin(dim=0)), _kept(most[~own].amax(dim=0))
        left[own] = _outside(shown[own], *ends, leeway)
    return left


def usual_of(left: torch.Tensor) -> torch.Tensor:
    """Return by how much good parts usually leave the range of others in each colour, (3), of (n, 3, ...)."""
    return (left.flatten(2).amax(dim=2) + 1).log().mean(dim=0).exp()


def colour_logarithms(left: torch.Tensor, usual: torch.Tensor) -> torch.Tensor:
    """Return the logarithms (n, ...) of how far parts leave a range, (n, 3, ...), measured by what is usual, (3)."""
    return ((left / usual[:, None, None]).square().sum(dim=1).sqrt() + _LEAST).log()


def _outside(
    shown: torch.Tensor, least: torch.Tensor, most: torch.Tensor, leeway: torch.Tensor | float
) -> torch.Tensor:
    """Return by how much parts (n, 3, ...) leave ranges, less what most of a part does, up to `leeway` (1)."""
    left = _sides(shown, least, most)
    mostly = _mostly(left)
    mostly = mostly * (leeway / mostly.norm(dim=(0, 2), keepdim=True).clamp_min(1e-6)).clamp_max(1)
    return (left - mostly[..., None, None]).clamp_min(0).amax(dim=0)


def _sides(shown: torch.Tensor, least: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Return by how much parts (n, 3, ...) lie under and over ranges, (2, n, 3, ...)."""
    return torch.stack((least.float() - shown, shown - most.float())).clamp_min(0)


def _mostly(left: torch.Tensor) -> torch.Tensor:
    """Return the median over the places of what `_sides` gives, (2, n, 3)."""
    return left[..., ::_APART, ::_APART].flatten(3).median(dim=3).values


def _around(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return -functional.max_pool2d(-shown, 3, 1, 1), functional.max_pool2d(shown, 3, 1, 1)


def _kept(ends: torch.Tensor) -> torch.Tensor:
    return ends.round().clamp(-128, 127).to(torch.int8)
