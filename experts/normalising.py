"""Pixels as networks take them: normalised, as for ImageNet unless they say otherwise; and what is around pictures."""

from __future__ import annotations

import torch

from coe.helpers.preprocessing import NORMALIZATIONS, Colour

MEAN, DEVIATION = NORMALIZATIONS["imagenet"]
PADDING = (124, 116, 104)
"""The mean colour of ImageNet, which normalisation turns into 0."""


def normalised(images: torch.Tensor, module: torch.nn.Module, usual: tuple[Colour, Colour]) -> torch.Tensor:
    """Return images (n, 3, S, S) uint8 normalised as a network remembers, in its precision; else as is `usual`."""
    mean, deviation = getattr(module, "normalization", usual)
    return normalise(images, next(module.parameters()).dtype, mean, deviation)


def normalise(
    images: torch.Tensor, dtype: torch.dtype, mean: Colour = MEAN, deviation: Colour = DEVIATION
) -> torch.Tensor:
    """Return uint8 images (n, 3, S, S) normalised, as for ImageNet; with plain scalars, which any device takes."""
    scaled = images.to(dtype).div_(255.0)
    if (mean, deviation) == NORMALIZATIONS["0..1"]:
        return scaled
    # Stacked rather than written in place: ONNX's exporter loses in-place operators on a slice.
    channels = enumerate(zip(mean, deviation, strict=True))
    return torch.stack([scaled[:, channel].sub(middle).div_(width) for channel, (middle, width) in channels], dim=1)
