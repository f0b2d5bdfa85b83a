"""Colours of aligned good parts: the range of what they show at each place, and how far a part leaves it.

A range is that of a place and those next to it. A colour is brightness, red less green, and blue less both (opponent
colours; Ohta et al., 1980): a lead without solder is as bright as others, and no good one is red. The width of the
ranges says what each of the three is worth: among good parts of boards of many colours another one is less strange.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from experts.good_network import PIXELS

_LEAST = 0.2
"""Of the usual width of a range: what leaves it by less is as good as inside."""


def colours(images: torch.Tensor) -> torch.Tensor:
    """Return the colours (n, 3, PIXELS, PIXELS) of images (n, 3, S, S) uint8 RGB, in grey levels."""
    red, green, blue = functional.adaptive_avg_pool2d(images.float(), PIXELS).unbind(dim=1)
    return torch.stack(((red + green + blue) / 3 - 128, red - green, blue - (red + green) / 2), dim=1)


def ranges(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return middle and half the width (3, PIXELS, PIXELS) of what parts (n, 3, ...) show at a place or next to it."""
    return _range(*_around(shown))


def outside(shown: torch.Tensor, middle: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """Return the logarithms (n, PIXELS, PIXELS) of how far colours (n, 3, ...) lie outside of ranges."""
    usual = half.flatten(1).median(dim=1).values + 1
    left = ((shown - middle).abs() - half).clamp_min(0) / usual[:, None, None]
    return (left.square().sum(dim=1).sqrt() + _LEAST).log()


def largest_of_each(shown: torch.Tensor) -> NDArray[np.float64]:
    """Return the largest logarithm (n) of each part (n, 3, ...) by the ranges of the others."""
    least, most = _around(shown)
    others = [torch.arange(len(shown)) != place for place in range(len(shown))]
    return np.array(
        [
            float(outside(part[None], *_range(least[kept], most[kept])).max())
            for part, kept in zip(shown, others, strict=True)
        ]
    )


def _around(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return -functional.max_pool2d(-shown, 3, 1, 1), functional.max_pool2d(shown, 3, 1, 1)


def _range(least: torch.Tensor, most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = least.amin(dim=0), most.amax(dim=0)
    return (low + high) / 2, ((high - low) / 2).clamp_min(0.5)
