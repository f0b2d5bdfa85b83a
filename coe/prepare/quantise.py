"""Blocks of 128 weights as int8 with an fp16 scale each: a quarter of the bytes, each off by half a step at most."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from coe.store.blob_format import BLOCK, padded

_STEPS = 127


@dataclass(frozen=True, slots=True)
class Blocks:
    """values: (blocks * 128,) int8; scales: (blocks,) fp16. A weight is its value times its block's scale."""

    values: torch.Tensor
    scales: torch.Tensor


def quantise(weights: torch.Tensor) -> Blocks | None:
    """Quantise weights, (n,) fp32 and finite, the last block filled up with zeros; None if a scale overflows fp16.

    Scales are rounded up, so that no weight is cut off at the end of its block's range: each is off by half its
    scale at most.
    """
    blocks = pad(weights, (0, padded(len(weights), BLOCK) - len(weights))).view(-1, BLOCK)
    exact = blocks.abs().amax(dim=1) / _STEPS
    scales = exact.half()
    low = scales.float() < exact
    # The bits of positive halves are in the order of their values, so the next one up is one more.
    scales = torch.where(low, (scales.view(torch.int16) + 1).view(torch.float16), scales)
    if not bool(scales.isfinite().all()):
        return None
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).float()
    values = (blocks / steps[:, None]).round_().clamp_(-_STEPS, _STEPS).to(torch.int8)
    return Blocks(values.view(-1), scales)
