"""Ways to store a tensor in fewer bytes, and to get it back: for `apps.parent_difference`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from coe.prepare.quantise import quantise


@dataclass(frozen=True, slots=True)
class Approximation:
    """A tensor that was made smaller and back again: (out, n) fp32, and the bytes that it takes."""

    value: torch.Tensor
    bytes: int


Encoding = Callable[[torch.Tensor], Approximation]
"""What becomes of a tensor (out, n) fp32."""


def exact(matrix: torch.Tensor) -> Approximation:
    """Keep fp32."""
    return Approximation(matrix, 4 * matrix.numel())


def q8(matrix: torch.Tensor) -> Approximation:
    """As the variant `q8`: 8 bits, blocks of 128 with an fp16 scale."""
    blocks = quantise(matrix.flatten())
    assert blocks is not None, "no scale of a trained network overflows"
    value = (blocks.values.view(-1, 128) * blocks.scales.float()[:, None]).flatten()[: matrix.numel()]
    return Approximation(value.view_as(matrix), len(blocks.values) + 2 * len(blocks.scales))


def q4(group: int) -> Encoding:
    """4 bits, -7 to 7, with an fp16 scale for each `group` numbers of a row; 0: for each row, an output channel.

    Of some scales, that with the least square error.
    """

    def encode(matrix: torch.Tensor) -> Approximation:
        size = min(group, matrix.shape[1]) or matrix.shape[1]
        padding = -matrix.shape[1] % size
        groups = torch.nn.functional.pad(matrix, (0, padding)).unflatten(1, (-1, size))
        largest = groups.abs().amax(dim=2, keepdim=True).clamp(min=1e-12) / 7
        best, least = groups, torch.full_like(largest, math.inf)
        for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
            scale = (largest * share).half().float().clamp(min=6e-8)
            tried = (groups / scale).round().clamp(-7, 7) * scale
            error = (tried - groups).square().sum(dim=2, keepdim=True)
            best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
        value = best.flatten(1)[:, : matrix.shape[1]]
        return Approximation(value, math.ceil(matrix.numel() / 2) + 2 * largest.numel())

    return encode


def low_rank(rank: int, factors: str) -> Encoding:
    """The best approximation of that rank, its two factors in `q8` or `fp16`; a matrix of less rank stays fp32."""

    def encode(matrix: torch.Tensor) -> Approximation:
        if rank * sum(matrix.shape) >= matrix.numel():
            return exact(matrix)
        # Within half a percent of the exact decomposition, in a fifth of its time or less.
        left, strength, right = torch.svd_lowrank(matrix, rank + 8, niter=4)
        root = strength[:rank].sqrt()
        # Each row a component, so that a block of q8 holds numbers of like size.
        pair = (left[:, :rank] * root).T.contiguous(), (right[:, :rank] * root).T.contiguous()
        if factors == "q8":
            made = [q8(factor) for factor in pair]
        else:
            made = [Approximation(factor.half().float(), 2 * factor.numel()) for factor in pair]
        return Approximation(made[0].value.T @ made[1].value, made[0].bytes + made[1].bytes)

    return encode


def both(first: Encoding, second: Encoding) -> Encoding:
    """One encoding, and another of what the first leaves."""

    def encode(matrix: torch.Tensor) -> Approximation:
        rough = first(matrix)
        rest = second(matrix - rough.value)
        return Approximation(rough.value + rest.value, rough.bytes + rest.bytes)

    return encode
