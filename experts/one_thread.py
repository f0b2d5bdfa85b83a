"""Convolutions of frozen networks that take less time on one thread of a CPU than torch's own, with the same numbers.

On one thread torch computes a convolution of 1 x 1 places as a product of copied matrices; and where timm pads as
TensorFlow does, more below than above, it copies what is largest in a network.
"""

from __future__ import annotations

import torch
from torch.nn import functional


class Pointwise(torch.nn.Conv2d):
    """A convolution of single places, 1 x 1: one product of matrices, which are views."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return what the convolution gives, (n, C, h, w) of (n, c, h, w)."""
        if not _is_alone(input):
            return super().forward(input)
        places = input.permute(0, 2, 3, 1)
        found = functional.linear(places, self.weight.flatten(1), self.bias)
        return found.permute(0, 3, 1, 2)


class Halving(torch.nn.Conv2d):
    """A convolution of timm's of an odd kernel and stride 2, which pads an even side by one more below than above.

    With a row and a column of weights 0 before the others the padding is the same on all sides.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return what the convolution gives, (n, C, h / 2, w / 2) of (n, c, h, w), sides rounded up."""
        if any(int(side) % 2 for side in input.shape[-2:]):
            from timm.layers import Conv2dSame  # slow to import

            found: torch.Tensor = Conv2dSame.forward(self, input)
            return found
        if not _is_alone(input):
            # In numbers, not in what timm computes of the shape: with those, models in int8 pad in floats.
            before = self.kernel_size[0] // 2 - 1
            padded = functional.pad(input, (before, before + 1) * 2)
            return functional.conv2d(padded, self.weight, self.bias, 2, 0, 1, self.groups)
        weights = functional.pad(self.weight, (1, 0, 1, 0))
        return functional.conv2d(input, weights, self.bias, 2, self.kernel_size[0] // 2, 1, self.groups)


def hasten(network: torch.nn.Module) -> None:
    """Let a network's convolutions compute as the classes of this module do, where they can; its weights stay."""
    from timm.layers import Conv2dSame  # slow to import

    for layer in network.modules():
        if not isinstance(layer, torch.nn.Conv2d) or layer.dilation != (1, 1) or layer.padding != (0, 0):
            continue
        if type(layer) is torch.nn.Conv2d and layer.kernel_size == layer.stride == (1, 1) and layer.groups == 1:
            layer.__class__ = Pointwise
        elif type(layer) is Conv2dSame and layer.kernel_size in ((3, 3), (5, 5)) and layer.stride == (2, 2):
            layer.__class__ = Halving


def _is_alone(input: torch.Tensor) -> bool:
    """Tell whether one thread of a CPU computes in fp32, channels-last; what is traced keeps its operators."""
    return (
        input.device.type == "cpu"
        and input.dtype == torch.float32
        and torch.get_num_threads() == 1
        and input.is_contiguous(memory_format=torch.channels_last)
        and not torch.jit.is_tracing()
    )
