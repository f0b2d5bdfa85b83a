"""Weights that a training keeps apart, as pruning and norms do: put together as the network computes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

_PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.(?:(original[01]?)|0\._([uv]))$")
_OLD_ENDS = {"original0": "g", "original1": "v", "original": "orig"}
_PAIRS = {"orig": "mask", "v": "g"}
"""The ends of the names of a pair: of pruned weights, and of directions with their lengths."""
_PARTS = {"orig", "mask", "v", "g", "u"}
_COMPUTED = re.compile(r"(.*?)\.(?:parametrizations\.\w+\.|\w+_orig$)")
"""The layer of a name of weights that are computed from others in some other way, as orthogonal ones."""


def put_together(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return tensors with those in the place of their parts that a network computes of them, and their names."""
    whole = {_PARAMETRIZED.sub(lambda one: f"{one[1]}_{_OLD_ENDS.get(one[2], one[3])}", n): state[n] for n in state}
    made: dict[str, torch.Tensor] = {}
    for name, first in whole.items():
        base, _, end = name.rpartition("_")
        other, left, right = (whole.get(f"{base}_{part}") for part in (_PAIRS.get(end), "u", "v"))
        if base in whole:
            continue
        if other is not None:
            if end == "v":
                axes = [axis for axis, size in enumerate(other.shape) if size == 1] or None
                other = other.float() / torch.linalg.vector_norm(first.float(), dim=axes, keepdim=True)
            made[base] = (first * other).to(first.dtype)
        elif end == "orig" and left is not None and right is not None:
            rows = first.flatten(1).float()
            if rows.shape == (*left.shape, *right.shape):  # spectral norm: over the greatest singular value
                made[base] = (first / (left.float() @ (rows @ right.float()))).to(first.dtype)
    parts = {f"{base}_{end}" for base in made for end in _PARTS}
    return {name: value for name, value in whole.items() if name not in parts} | made, [*made]


def computed(state: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the layers whose weights are computed from others in a way that is not known here."""
    return list(dict.fromkeys(found[1] for name in state if (found := _COMPUTED.match(name))))
