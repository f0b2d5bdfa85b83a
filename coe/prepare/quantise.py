"""Blocks of 128 weights as int8 with an fp16 scale each: a quarter of the bytes, at most half a step off."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from coe.store.blob_format import BLOCK, padded

_STEPS = 127


@dataclass(frozen=True, slots=True)
class Blocks:
    """values: (blocks * 128,) int8; scales: (blocks,) fp16. A weight is a value times the scale of its block."""

    values: torch.Tensor
    scales: torch.Tensor


def quantise(weights: torch.Tensor) -> Blocks | None:
    """Quantise weights, (n,) fp32 and finite; return None if a scale overflows fp16. Zeros fill up the last block.

    Scales are rounded up, so that no weight is clipped: each is off by half its block's scale at most.
    """
    blocks = pad(weights, (0, padded(len(weights), BLOCK) - len(weights))).view(-1, BLOCK)
    exact = blocks.abs().amax(dim=1) / _STEPS
    scales = exact.half()
    low = scales.float() < exact
    # The bits of positive halves are in the order of their values: adding 1 to the bits gives the next larger half.
    scales = torch.where(low, (scales.view(torch.int16) + 1).view(torch.float16), scales)
    if not bool(scales.isfinite().all()):
        return None
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).float()
    values = (blocks / steps[:, None]).round_().clamp_(-_STEPS, _STEPS).to(torch.int8)
    return Blocks(values.view(-1), scales)
