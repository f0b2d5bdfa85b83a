"""An EfficientNet-Lite on a CPU, its norms folded: each convolution also adds and activates, in one pass.

Torch's own way goes through the largest of a network's numbers up to three times more: it copies biases into the
products of 1 x 1 convolutions, copies what timm pads as TensorFlow does, more below than above, and activates apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

_MOST = 6.0
"""No activation is larger."""


def can_fuse(network: torch.nn.Module, images: torch.Tensor) -> bool:
    """Tell whether `maps` gives what a network gives: an EfficientNet-Lite without norms, in fp32 on a CPU."""
    return (
        images.device.type == "cpu"
        and images.dtype == torch.float32
        and hasattr(network, "stage_ends")
        and isinstance(network.bn1, torch.nn.ReLU6)
    )


def maps(network: Any, images: torch.Tensor, stages: Sequence[int]) -> list[torch.Tensor]:
    """Return maps (n, channels, h, w) of the stages of these numbers, of normalised images (n, 3, S, S)."""
    ends = [network.stage_ends[stage] for stage in stages]
    found = []
    seen = _convolved(network.conv_stem, images)
    for number, stage in enumerate(network.blocks[: max(ends)], start=1):
        for block in stage:
            before = seen if block.has_skip else None
            if hasattr(block, "conv_pwl"):
                seen = _convolved(block.conv_dw, _convolved(block.conv_pw, seen))
                seen = _convolved(block.conv_pwl, seen, activated=False, and_add=before)
            else:
                seen = _convolved(block.conv_pw, _convolved(block.conv_dw, seen), activated=False, and_add=before)
        if number in ends:
            found.append(seen)
    return found


def _convolved(
    layer: torch.nn.Conv2d, seen: torch.Tensor, *, activated: bool = True, and_add: torch.Tensor | None = None
) -> torch.Tensor:
    side, weights = layer.kernel_size[0], layer.weight
    padding, is_uneven = side // 2, layer.stride != (1, 1) and int(seen.shape[-1]) % 2 == 0
    if torch.jit.is_tracing() or not torch.backends.mkldnn.is_available():
        if is_uneven:
            seen, padding = functional.pad(seen, 2 * ((side - 2) // 2, (side - 1) // 2)), 0
        found = functional.conv2d(seen, weights, layer.bias, layer.stride, padding, 1, layer.groups)
        found = functional.relu6(found) if activated else found
        return found if and_add is None else found + and_add
    if is_uneven:
        # With a row and a column of weights 0 before the others the padding is the same on all sides.
        weights = functional.pad(weights, (1, 0, 1, 0))
    settings = weights, layer.bias, [padding] * 2, list(layer.stride), [1, 1], layer.groups
    one = torch.ops.mkldnn._convolution_pointwise
    if and_add is not None:
        return one.binary(seen, and_add, *settings, "add", 1.0, None, [], None)  # type: ignore[no-any-return]
    activation = ("hardtanh", [0.0, _MOST]) if activated else ("none", [])
    return one(seen, *settings, *activation, None)  # type: ignore[no-any-return]
