"""From a foreign file's tensors to those of a kind: out of the wrappers that trainings put around a network.

The tensors under one prefix are taken if they are all that the kind needs, and it is said under which. Whatever
else the file holds is left out only if no network computes with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from coe.bring.weights_apart import computed, put_together
from coe.core import Expert
from coe.errors import StoreError, list_few
from coe.store.kinds import Foreign, Layer, ModuleKind
from coe.store.skeletons import bare_skeleton

_AVERAGED = re.compile(r"(\w*_)?(ema|averaged|average|teacher|swa)(_\w+)?")
"""Words of a prefix for weights averaged over a training, which it means to be used."""
_SUPERSEDED = re.compile(r"current_model_state")
"""Lightning's word for the weights as they were before their average took their place."""
_BESIDE = re.compile(
    r"(\w*_)?(loss|losses|criterion|criteria|metrics?|acc|accuracy|f1|auroc|auc|confmat|class_weights?|optim|optimizers?"
    r"|cross_?entropy|bce|nll|crit|pos_weights?|precision|recall|specificity|f1_?score|confusion_matrix|schedulers?|scaler|callbacks?|rng|teacher|student|ema|n_averaged|steps?|epochs?|best)(_\w+|\d+)?"
    r"|optimizer\w*|total_ops|total_params|loops"
)
"""Words of names beside a network: what a training needs, or measures, and its other copies of the network."""
_INSIDE = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What torch writes into the names of parts that it wraps; it changes nothing that a network computes."""
_COUNTER = "num_batches_tracked"
_IGNORED_SETTINGS = frozenset({"training", "inplace", "momentum", "i", "np", "type", "p"})
"""Settings of layers that change nothing when they judge, and numbers by which a network counts its layers."""
_SAME_LAYER = dict.fromkeys(("SyncBatchNorm", "FrozenBatchNorm2d"), "BatchNorm2d")
_NOTHING_DONE = {"Dropout", "Dropout1d", "Dropout2d", "Identity", "Flatten"}
"""Layers that may stand before the last one in its place: they do nothing to a row of features."""
_AFTERWARDS = {"Softmax", "LogSoftmax"}
"""Layers that may stand behind a network: its scores get a softmax in any case."""
_APART = ("backbone.", "head.")
"""MMPretrain keeps the last layer beside the network that it belongs to, as backbone.conv1 and head.fc."""
_NEARLY = 0.9
"""A network that lacks fewer of its tensors is meant."""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Tensors and layers by the names of a kind, and sentences on what was taken and what was left out."""

    state: dict[str, torch.Tensor]
    layers: Mapping[str, Layer] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def unwrapped(
    foreign: Foreign, wanted: Mapping[str, torch.Tensor], where: str, *, drop_rest: bool = False
) -> Unwrapped:
    """Return the tensors that a kind needs, whose skeleton has those of `wanted`, by its names.

    A file none of whose prefixes has all names is returned as it is. Raises StoreError, which begins with `where`, if
    several networks in the file fit, and if it holds tensors of more layers than the kind has; `drop_rest` leaves these
    out.
    """
    needed = [name for name in wanted if not name.endswith(_COUNTER)]
    prefixes = _prefixes(foreign.state, needed)
    found = [part for prefix in prefixes if (part := _part(foreign.state, prefix, wanted))]
    if not found:
        whole, made = put_together(foreign.state)
        if made:
            inner = unwrapped(replace(foreign, state=whole), wanted, where, drop_rest=drop_rest)
            told = f"put together what pruning or a norm of weights keeps apart: {list_few(made)}"
            return replace(inner, remarks=(*inner.remarks, told))
        if unknown := computed(foreign.state):
            raise StoreError(
                f"{where}: the weights of {list_few(unknown)} are computed from others in a way that is not known; "
                "make them plain where the network was made (`remove_parametrizations`) and save it again"
            )
        _expect_no_torn_network(foreign.state, prefixes, needed, where)
        plain = {_INSIDE.sub("", name): value for name, value in foreign.state.items()}
        if plain.keys() == foreign.state.keys() or len(plain) < len(foreign.state):
            return Unwrapped(foreign.state, foreign.layers)
        inner = unwrapped(replace(foreign, state=plain), wanted, where, drop_rest=drop_rest)
        words = sorted({word for name in foreign.state for word in _INSIDE.findall(name)})
        return replace(inner, remarks=(*inner.remarks, f"took {list_few(words)} out of the names"))
    part = _chosen([part for part in found if part.fits] or found, foreign.state, where)
    others = [other.prefix for other in found if other is not part]
    taken = {own: foreign.state[theirs] for own, theirs in part.names.items()}
    surplus = sorted(foreign.state.keys() - {name for one in found for name in one.names.values()})
    unknown = [n for n in surplus if not drop_rest and not _is_beside(n, foreign.state[n], part.prefix)]
    if unknown and part.prefix:
        raise StoreError(
            f"{where}: beside the network under '{part.prefix}' it holds tensors of other layers "
            f"({list_few(unknown)}), without which the network would judge otherwise; save the weights of that part "
            "alone, or export the whole network as ONNX"
        )
    taken |= {name: foreign.state[name] for name in unknown}  # the kind refuses them, or knows them by these names
    left_out = [name for name in surplus if name not in unknown]
    remarks = [*part.remarks, *([f"left out: {list_few(left_out)}"] if left_out else [])]
    if not drop_rest and (around := _around(foreign.layers, part.prefix)):
        raise StoreError(
            f"{where}: other layers stand around the network under '{part.prefix}' ({list_few(around)}), and what it "
            "sees or says goes through them; export the whole as ONNX and import that with --kind onnx"
        )
    if part.prefix or others:
        also = f"; it also holds a network under {_quoted(others)}" if others else ""
        remarks.insert(0, f"took the weights under {_quoted([part.prefix])}{also}")
    layers = {
        name.removeprefix(part.prefix): layer
        for name, layer in foreign.layers.items()
        if name.startswith(part.prefix) or f"{name}." == part.prefix
    }
    return Unwrapped(taken, layers, tuple(remarks))


def resembles(state: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether tensors have the names of a kind's, counters aside, and nearly all have their shapes."""
    names, needed = ([name for name in one if not name.endswith(_COUNTER)] for one in (state, wanted))
    return {*names} == {*needed} and sum(state[n].shape == wanted[n].shape for n in needed) >= _NEARLY * len(needed)


def backbone(foreign: Foreign, kind: ModuleKind, expert: Expert, where: str) -> Unwrapped:
    """Return the tensors of a kind's network but those of its head, whose shape depends on the number of labels.

    Raises StoreError if one is not there, or has another shape.
    """
    labels = [tuple(map(str, range(count))) for count in (1, 1000)]
    one, many = (bare_skeleton(kind, replace(expert, labels=own), optional=()) for own in labels)
    shapes = {name: tensor.shape for name, tensor in many.state_dict().items()}
    wanted = {name: tensor for name, tensor in one.state_dict().items() if tensor.shape == shapes.get(name)}
    taken = unwrapped(foreign, wanted, where, drop_rest=True)
    owners = tuple({f"{name.rpartition('.')[0]}." for name in wanted})
    check_layers({n: layer for n, layer in taken.layers.items() if f"{n}.".startswith(owners)}, one, where)
    counters = {name: tensor for name, tensor in wanted.items() if name.endswith(_COUNTER)}
    state = counters | {name: taken.state[name] for name in wanted if name in taken.state}
    if missing := [name for name in wanted if name not in state]:
        raise StoreError(
            f"{where}: {kind.name} needs {list_few(missing)}, which the file lacks; is it of another kind?"
        )
    odd = [
        f"'{name}' is {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if state[name].shape != tensor.shape
    ]
    if odd:
        raise StoreError(f"{where}: {list_few(odd, between='; ')}; is it of another kind than {kind.name}?")
    exact = {name: state[name].detach().to(tensor.dtype).contiguous() for name, tensor in wanted.items()}
    return Unwrapped(exact, taken.layers, taken.remarks)


def _expect_no_torn_network(
    state: Mapping[str, Any], prefixes: Sequence[str], needed: Sequence[str], where: str
) -> None:
    """Raise StoreError if nearly the whole network lies under a prefix, and the rest under another one."""
    for prefix in filter(None, prefixes):
        missing = [name for name in needed if f"{prefix}{name}" not in state]
        beside = [name for name in state if not name.startswith(prefix)]
        if len(missing) < (1 - _NEARLY) * len(needed):
            others = f", and holds {list_few(beside)} beside it" if beside else ""
            raise StoreError(
                f"{where}: the network under '{prefix}' lacks {list_few(missing)}{others}; put its last layer into the "
                "network where it was made (`network.fc = head`) and save that, or export the whole as ONNX and import "
                "that with --kind onnx"
            )


def _around(layers: Mapping[str, Layer], prefix: str) -> list[str]:
    """Return the layers that compute something beside a part of a whole network, in the containers that it lies in."""
    words = prefix.split(".")[:-1]
    containers = [above for end in range(len(words)) if (above := ".".join(words[:end])) in layers]
    if not containers:
        return []
    root = f"{containers[0]}." if containers[0] else ""
    containers_of_any = {containers[0], *(name.rpartition(".")[0] for name in layers)}
    return [
        f"{layer.name} as '{name}'"
        for name, layer in layers.items()
        if name.startswith(root)
        and not f"{name}.".startswith(prefix)
        and not prefix.startswith(f"{name}.")
        and name not in containers_of_any
        and layer.name not in _NOTHING_DONE | _AFTERWARDS
    ]


def check_layers(layers: Mapping[str, Layer], module: torch.nn.Module, where: str) -> None:
    """Compare the layers of a whole network with a skeleton's; raises StoreError if it computes something else."""
    faults: list[str] = []
    *_, head = ("", *(name for name, own in module.named_modules() if isinstance(own, torch.nn.Linear)))
    for name, own in module.named_modules():
        if (layer := layers.get(name)) is None or not name:
            continue
        if (said := _SAME_LAYER.get(layer.name, layer.name)) != type(own).__name__:
            faults += _odd_head(name, own, layers) if said == "Sequential" else [f"'{name}' is a {said}"]
            continue
        for setting, value in vars(own).items():
            if setting.startswith("_") or setting in _IGNORED_SETTINGS or setting not in layer.settings:
                continue
            if isinstance(value, int | float | str | list | tuple | None) and _plain(value) != _plain(
                layer.settings[setting]
            ):
                if name == head and setting == "out_features" and not faults:
                    outputs = f"{layer.settings[setting]!r:.40} outputs, and {value} labels are given"
                    raise StoreError(
                        f"{where}: its last layer has {outputs}; give --labels in the order of the outputs"
                    )
                faults.append(f"'{name}' has {setting} = {layer.settings[setting]!r:.40}, not {value!r:.40}")
    if faults:
        raise StoreError(
            f"{where}: its network computes something else: {list_few(faults, between='; ')}; export it as ONNX and "
            "import that with --kind onnx"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """What a file holds under a prefix: the file's name for each own name. `fits` if all shapes are those needed."""

    prefix: str
    names: Mapping[str, str]
    fits: bool
    remarks: tuple[str, ...] = ()


def _prefixes(state: Mapping[str, Any], needed: Sequence[str]) -> list[str]:
    ends = {name.removesuffix(needed[0]) for name in state if needed and name.endswith(needed[0])}
    return sorted(prefix for prefix in ends if not prefix or prefix.endswith("."))


def _part(state: Mapping[str, torch.Tensor], prefix: str, wanted: Mapping[str, torch.Tensor]) -> _Part | None:
    """Return what a file holds under a prefix; None if a tensor that is needed is not there."""
    names = {name: f"{prefix}{name}" for name in wanted if f"{prefix}{name}" in state}
    missing = [name for name in wanted if name not in names and not name.endswith(_COUNTER)]
    remarks = []
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in missing):
        behind = _behind(state, f"{prefix}{layer}.")
        network, apart = _APART
        if behind is None and f".{prefix}".endswith(f".{network}"):
            there = f"{prefix.removesuffix(network)}{apart}{layer}."
            behind = there if any(name.startswith(there) for name in state) else None
        if behind is None:
            return None
        leaves = [name.rpartition(".")[2] for name in missing if name.rpartition(".")[0] == layer]
        names |= {f"{layer}.{leaf}": f"{behind}{leaf}" for leaf in leaves if f"{behind}{leaf}" in state}
        remarks.append(f"took '{behind.removesuffix('.')}' as the layer '{layer}'")
    if any(name not in names for name in missing):
        return None
    fits = all(state[theirs].shape == wanted[own].shape for own, theirs in names.items())
    return _Part(prefix, names, fits, tuple(remarks))


def _behind(state: Mapping[str, Any], prefix: str) -> str | None:
    """Return the prefix of the only numbered layer under a prefix, as `fc.1.` behind a Dropout; None for several."""
    inside = {name.removeprefix(prefix).partition(".")[0] for name in state if name.startswith(prefix)}
    return f"{prefix}{inside.pop()}." if len(inside) == 1 and next(iter(inside)).isdigit() else None


def _chosen(parts: Sequence[_Part], state: Mapping[str, torch.Tensor], where: str) -> _Part:
    """Return the part that a file means to be used; raises StoreError if it does not say which."""
    best = min(map(_rank, parts))
    equals = [part for part in parts if _rank(part) == best]
    first = equals[0]
    if all(torch.equal(state[first.names[n]], state[p.names[n]]) for p in equals for n in first.names):
        return first
    raise StoreError(
        f"{where}: holds {len(equals)} networks that fit, under {_quoted([part.prefix for part in equals])}; save the "
        "weights of the one that shall judge alone"
    )


def _rank(part: _Part) -> int:
    words = part.prefix.split(".")
    if any(map(_AVERAGED.fullmatch, words)):
        return 0
    return 2 if any(map(_SUPERSEDED.fullmatch, words)) else 1


def _is_beside(name: str, value: torch.Tensor, prefix: str) -> bool:
    """Tell whether a network computes nothing with a tensor: a training's, a measure, or a count beside it."""
    is_count = value.dim() == 0 and prefix != "" and not name.startswith(prefix)
    return is_count or any(map(_BESIDE.fullmatch, name.split(".")))


def _odd_head(name: str, own: torch.nn.Module, layers: Mapping[str, Layer]) -> list[str]:
    inside = [layer.name for other, layer in layers.items() if other.startswith(f"{name}.")]
    odd = [layer for layer in inside if layer not in _NOTHING_DONE and layer != type(own).__name__]
    return [f"'{name}' also has a {layer}" for layer in odd]


def _plain(value: Any) -> Any:
    """Return a setting in one form: 3, (3, 3) and [3, 3] are the same size."""
    if not isinstance(value, list | tuple):
        return value
    values = [_plain(one) for one in value]
    return values[0] if values and all(one == values[0] for one in values) else values


def _quoted(prefixes: Sequence[str]) -> str:
    return list_few([f"'{prefix}'" if prefix else "no prefix" for prefix in prefixes])
