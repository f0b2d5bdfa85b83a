"""Networks with random weights, for trials."""

from __future__ import annotations

import torch

from coe.core import Expert
from coe.store.runnable_kinds import NetworkKind
from coe.store.skeletons import skeleton

_WILD = 1e3
"""Numbers beyond this may soon exceed the range of fp16, which ends at 65,504."""


def random_weights(kind: NetworkKind, expert: Expert, seed: int) -> dict[str, torch.Tensor]:
    """Return seeded random weights, by name, for trials: their findings mean nothing.

    If numbers grow from layer to layer, as in a ResNet101, which would leave the range of fp16, batch norms take
    the statistics of random images.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = skeleton(kind, expert, optional=())
        # More images if they are small, because little is left of each at the end of the network.
        size = expert.input_size
        noise = torch.randint(0, 256, (max(2, 512 // size), 3, size, size), dtype=torch.uint8)
        if _largest(kind, module, noise) > _WILD:
            norms = [layer for layer in module.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
            for norm in norms:
                norm.train()
                norm.momentum = 1.0
            kind.forward(module, noise)
        return dict(module.state_dict())


def _largest(kind: NetworkKind, module: torch.nn.Module, images: torch.Tensor) -> float:
    """Return the largest number that any convolution of the network puts out."""
    largest = [0.0]
    hooks = [
        layer.register_forward_hook(lambda _, __, output: largest.append(float(output.abs().max())))
        for layer in module.modules()
        if isinstance(layer, torch.nn.Conv2d)
    ]
    kind.forward(module, images)
    for hook in hooks:
        hook.remove()
    return max(largest)
