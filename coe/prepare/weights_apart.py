"""Weights that a training keeps apart, as pruning and weight norm do: put together as the network computes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

_PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.original([01])$")
_PAIRS = {"orig": "mask", "v": "g"}
"""The ends of the names of a pair: of pruned weights, and of directions with their lengths."""
_COMPUTED = re.compile(r"(.*?)\.(?:parametrizations\.\w+\.|\w+_orig$)")
"""The layer of a name of weights that are computed from others in some other way, as by spectral norm."""


def put_together(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return tensors with those in the place of their parts that a network computes of them, and their names."""
    whole = {_PARAMETRIZED.sub(lambda found: f"{found[1]}_{'gv'[int(found[2])]}", one): state[one] for one in state}
    made: dict[str, torch.Tensor] = {}
    for name, first in whole.items():
        base, _, end = name.rpartition("_")
        other = whole.get(f"{base}_{_PAIRS.get(end)}")
        if other is not None and base not in whole:
            if end == "v":
                axes = [axis for axis, size in enumerate(other.shape) if size == 1] or None
                other = other.float() / torch.linalg.vector_norm(first.float(), dim=axes, keepdim=True)
            made[base] = (first * other).to(first.dtype)
    parts = {f"{base}_{end}" for base in made for both in _PAIRS.items() for end in both}
    return {name: value for name, value in whole.items() if name not in parts} | made, [*made]


def computed(state: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the layers whose weights are computed from others in a way that is not known here."""
    return list(dict.fromkeys(found[1] for name in state if (found := _COMPUTED.match(name))))
