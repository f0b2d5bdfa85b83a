"""Networks without weights, which need not draw any before theirs are put in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


def has_optional(names: Iterable[str]) -> bool:
    """Tell from the names of weights whether they have what a network's submodule `optional` holds.

    A kind that learns to keep more puts it there: weights of before lack it, and their network has None instead.
    """
    return any(".optional." in f".{name}" for name in names)


def bare_skeleton(kind: NetworkKind, expert: Expert, *, optional: bool = True) -> torch.nn.Module:
    """Build a kind's network for weights that replace its own: parameters that are drawn hold what memory held.

    Drawing takes nine tenths of the time in which a ResNet is built. Constants are filled in as always. Raises what
    the kind raises.
    """
    with _Undrawn():
        return skeleton(kind, expert, optional=optional)


def skeleton(kind: NetworkKind, expert: Expert, *, optional: bool = True) -> torch.nn.Module:
    """Build a kind's network, which remembers how its expert's input is normalised as `normalization`.

    Without `optional` it is one for weights that lack what its submodule of this name holds; see `has_optional`.
    """
    module = kind.skeleton(expert)
    own = getattr(module, "optional", None)
    if not optional and isinstance(own, torch.nn.Module) and own.state_dict():
        module.optional = None  # type: ignore[assignment]
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
