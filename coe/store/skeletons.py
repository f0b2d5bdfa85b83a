"""Networks without weights, which need not draw any before theirs are put in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from coe.core import Expert
from coe.store.runnable_kinds import NetworkKind

_DRAWS = frozenset(
    {
        *(torch.nn.init.kaiming_uniform_, torch.nn.init.uniform_, torch.nn.init.normal_),
        *(torch.Tensor.uniform_, torch.Tensor.normal_),
    }
)
"""What draws the parameters of torch's layers, and of the networks of kinds and of ultralytics."""


def bare_skeleton(kind: NetworkKind, expert: Expert, *, optional: Collection[str] | None = None) -> torch.nn.Module:
    """Build a kind's network for weights that replace its own: parameters that are drawn hold what memory held.

    Drawing takes nine tenths of the time in which a ResNet is built. Constants are filled in as always. Raises what
    the kind raises.
    """
    with _Undrawn():
        return skeleton(kind, expert, optional=optional)


def skeleton(kind: NetworkKind, expert: Expert, *, optional: Collection[str] | None = None) -> torch.nn.Module:
    """Build a kind's network, which remembers how its expert's input is normalised as `normalization`.

    It is one for weights that hold this of what is `optional`, see `blob_format.optional_of`; None: all of it.
    """
    module = kind.skeleton(expert)
    for name in () if optional is None else {"optional", *getattr(module, "may_lack", ())} - set(optional):
        own = getattr(module, name, None)
        if isinstance(own, torch.Tensor) or (isinstance(own, torch.nn.Module) and own.state_dict()):
            setattr(module, name, None)
    if (values := kind.normalization(expert)) is not None:
        module.normalization = values  # type: ignore[assignment]
    return module


class _Undrawn(TorchFunctionMode):
    """Draws no random numbers into parameters, on the thread that enters it alone."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in _DRAWS:
            tensor = args[0] if args else named.get("tensor")
            # Other tensors are no weights that somebody replaces: a buffer may be missing in the state.
            if isinstance(tensor, torch.nn.Parameter):
                return tensor
        return func(*args, **named)


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
