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
"""What draws the parameters of torch's layers, and of torchvision's and ultralytics' networks."""


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
        tensor = args[0] if args else named.get("tensor")
        # Other tensors are no weights that somebody replaces: a buffer may be missing in the state.
        if func in _DRAWS and isinstance(tensor, torch.nn.Parameter):
            return tensor
        return func(*args, **named)
