"""Folding batch norms into the convolutions before them, in any network; the folded network's outputs prove it.

It needs no knowledge of architectures: one pass is watched, and a norm whose input is the very tensor that a
convolution returned belongs to that convolution. Arithmetic is done in float64, so that folding costs one rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import BatchNorm2d, Conv2d
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.parametrize import is_parametrized

from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.blob import folded_skeleton
from coe.store.blob_format import optional_of
from coe.store.kinds import ModuleKind
from coe.store.outputs import is_finite, leaves
from coe.store.skeletons import bare_skeleton

Pairs = tuple[tuple[str, str], ...]
TOLERANCE = 1e-4
"""The most by which a folded network's outputs may differ, as a share of 1 + the channel's largest number."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Weights by the names of the folded skeleton, and the (conv, norm) pairs that were folded."""

    state: dict[str, torch.Tensor]
    pairs: Pairs


def check_finite(state: Mapping[str, torch.Tensor]) -> None:
    """Raise StoreError if a tensor holds numbers that are not finite, which no network can have learnt."""
    for name, tensor in state.items():
        if not is_finite(tensor):
            raise StoreError(f"'{name}' holds numbers that are not finite; import or train the expert again")


def fold(kind: ModuleKind, expert: Expert, state: Mapping[str, torch.Tensor]) -> Folded:
    """Fold all norms of an expert that can be folded without changing the network's outputs on random images.

    Raises StoreError if weights do not fit the kind, or if weights or outputs are not finite.
    """
    check_finite(state)
    module = network(kind, expert, state)
    images = _images(expert.input_size)
    with torch.no_grad(), _watching(module) as seen:
        expected = _leaves(kind.forward(module, images))
    if not all(map(is_finite, expected)):
        raise StoreError("its network gives numbers that are not finite on random images; train the expert again")

    def proved(pairs: Pairs) -> Folded | None:
        folded = Folded(folded_state(module, state, pairs), pairs)
        with torch.no_grad():
            actual = _leaves(kind.forward(network(kind, expert, folded.state, pairs), images))
        return folded if _agree(expected, actual) else None

    candidates = seen.pairs()
    if whole := proved(candidates):
        return whole
    # The network also uses some convolution's output without its norm. So each pair is proved by itself.
    return proved(tuple(pair for pair in candidates if proved((pair,)))) or Folded(dict(state), ())


def network(
    kind: ModuleKind,
    expert: Expert,
    state: Mapping[str, torch.Tensor],
    pairs: Pairs = (),
    dtype: torch.dtype | None = None,
) -> torch.nn.Module:
    """Build a network with these weights, ready to infer, in their precision or in `dtype`; raises StoreError."""
    bare = bare_skeleton(kind, expert, optional=optional_of(state))
    module = folded_skeleton(bare, pairs).eval().requires_grad_(False)
    if dtype is not None:
        # Channels-last, as the engine runs it; else a CPU without fp16 arithmetic takes nine times as long.
        module = module.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise StoreError(f"the weights do not fit kind '{kind.name}': {lines[-1].strip()}") from None
    return module


class _WatchedPass:
    """What one pass showed: how often each module ran, and which convolution's output each norm got."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.names: dict[torch.nn.Module, list[str]] = {}
        for name, part in module.named_modules(remove_duplicate=False):
            self.names.setdefault(part, []).append(name)
        self.owners = Counter(id(tensor) for part in self.names for tensor in part.parameters(recurse=False))
        self.runs: Counter[torch.nn.Module] = Counter()
        self._outputs: dict[int, tuple[Conv2d, torch.Tensor]] = {}
        self._pairs: list[tuple[Conv2d, BatchNorm2d]] = []

    def ran(self, part: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.runs[part] += 1
        if isinstance(part, Conv2d):
            # The tensor itself is kept as well: Python reuses an id once its object is gone.
            self._outputs[id(output)] = (part, output)
        elif isinstance(part, BatchNorm2d) and inputs and id(inputs[0]) in self._outputs:
            self._pairs.append((self._outputs[id(inputs[0])][0], part))

    def pairs(self) -> Pairs:
        users = Counter(conv for conv, _ in self._pairs)
        return tuple(
            (self.names[conv][0], self.names[norm][0])
            for conv, norm in self._pairs
            if self._is_simple(conv) and self._is_simple(norm) and users[conv] == 1 and norm.running_mean is not None
        )

    def _is_simple(self, part: torch.nn.Module) -> bool:
        """Tell whether a module has one name, ran once, and shares its plain weights with no other module."""
        shared = any(self.owners[id(tensor)] > 1 for tensor in part.parameters(recurse=False))
        return (
            self.runs[part] == 1
            and len(self.names[part]) == 1
            and not shared
            and not part.training
            and not is_parametrized(part)
            and not part._forward_pre_hooks
        )


@contextmanager
def _watching(module: torch.nn.Module) -> Iterator[_WatchedPass]:
    seen = _WatchedPass(module)
    hooks = [part.register_forward_hook(seen.ran) for part in seen.names if isinstance(part, Conv2d | BatchNorm2d)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def folded_state(
    module: torch.nn.Module, state: Mapping[str, torch.Tensor], pairs: Iterable[tuple[str, str]]
) -> dict[str, torch.Tensor]:
    """Return the weights of a network's folded skeleton, given its own, and (conv, norm) pairs of its layers."""
    pairs = tuple(pairs)
    norms = {norm for _, norm in pairs}
    folded = {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] not in norms}
    for conv_name, norm_name in pairs:
        conv, norm = module.get_submodule(conv_name), module.get_submodule(norm_name)
        assert isinstance(conv, Conv2d)
        assert isinstance(norm, BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            conv.weight.double(),
            _double(conv.bias),
            norm.running_mean.double(),
            norm.running_var.double(),
            norm.eps,
            _double(norm.weight),
            _double(norm.bias),
        )
        folded[f"{conv_name}.weight"] = weight.detach().to(conv.weight.dtype)
        folded[f"{conv_name}.bias"] = bias.detach().to(conv.weight.dtype)
    return folded


def _double(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.double()


def _agree(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> bool:
    return len(expected) == len(actual) and all(map(_near, expected, actual))


def _near(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if expected.shape != actual.shape or not is_finite(actual):
        return False
    if not expected.numel():
        return True
    # Per channel, because coordinates and scores are different channels: large coordinates must not excuse a score.
    others = [axis for axis in range(expected.ndim) if axis != 1]
    largest = expected.abs().amax(dim=others, keepdim=True) if others else expected.abs()
    return bool(((actual - expected).abs() <= TOLERANCE * (1 + largest)).all())


def _leaves(outputs: Any) -> list[torch.Tensor]:
    """Return all tensors of a kind's outputs, however nested, in float64."""
    # Whole numbers count only if there are no others: which of two near things is chosen may turn with the last bit.
    found = [leaf.detach() for leaf in leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return [leaf.double() for leaf in [one for one in found if one.is_floating_point()] or found]


def _images(size: int) -> torch.Tensor:
    """Return three noise images, (3, 3, S, S) uint8: at full contrast, dark, and in large patches."""
    chance = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (3, 3, size, size), generator=chance, dtype=torch.uint8)
    noise[1] //= 4
    step = max(1, size // 8)
    coarse = noise[2, :, ::step, ::step].repeat_interleave(step, 1).repeat_interleave(step, 2)
    noise[2] = coarse[:, :size, :size]
    return noise
