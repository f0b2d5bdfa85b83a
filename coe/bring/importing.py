"""From a foreign file to an expert that can be put into the store: read, unwrapped, agreed on, and run once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from coe.bring import facts
from coe.bring.facts import Wishes
from coe.core import Expert
from coe.errors import ConfigError, StoreError, list_few, readable
from coe.helpers import regular
from coe.helpers.plugins import running
from coe.store import torch_file
from coe.store.blob_format import optional_of
from coe.store.kinds import FileKind, Foreign, Kind, Layer, ModuleKind, Unsaid
from coe.store.manifest import Manifest
from coe.store.skeletons import bare_skeleton
from coe.store.store import Store
from coe.variants import accept

_POINTER = b"version https://git-lfs"
"""How a file begins that Git LFS left in the place of another one."""


@dataclass(frozen=True, slots=True)
class Brought:
    """An expert from a foreign file, and sentences on what was decided; its tensors by name, or its file.

    `is_stated` is as in `facts.Agreed`, and `unproven` says why that is not proven; None if there is nothing to prove.
    """

    expert: Expert
    remarks: tuple[str, ...]
    state: Mapping[str, torch.Tensor] | None = None
    file: Path | None = None
    is_stated: bool = False
    unproven: str | None = None

    def put(self, store: Store, source: str, licence: str = "") -> Manifest:
        """Put the expert into a store; raises StoreError."""
        expert = self.expert
        return store.put(
            expert.weights,
            kind=expert.kind,
            labels=expert.labels,
            input_size=expert.input_size,
            state=self.state,
            file=self.file,
            source=source,
            preprocessing=expert.preprocessing,
            outputs=expert.outputs,
            unproven=self.unproven,
            looks=expert.alternates,
            licence=licence,
        )


def bring(file: Path, expert: Expert, kind: Kind, wishes: Wishes, work: Path) -> Brought:
    """Read a foreign file for an expert, whose labels and input size may be left to it (() and 0).

    A file that needs others beside it is made into one in the folder `work`. Raises ConfigError, StoreError, and
    whatever the kind raises.
    """
    check_file(file)
    if isinstance(kind, FileKind):
        with running("kind", expert.kind, f"run with {file}"):
            whole = kind.bundled(file, work)
            try:
                foreign = kind.read(whole)
                agreed = facts.agree(expert, foreign, kind, wishes)
                outputs, missing = None, dict(agreed.missing)
                # A classifier whose labels nobody says is asked about its scores, too, at once.
                labels = agreed.expert.labels or tuple(map(str, range(max(2, foreign.columns) * (foreign.columns > 0))))
                if labels and "input" not in missing:
                    accept.check_labels(tried := replace(agreed.expert, labels=labels))
                    try:
                        outputs = kind.settle(whole, tried)
                    except Unsaid as error:
                        missing |= error.missing
                if missing:
                    raise facts.question(str(file), missing)
                expert = replace(agreed.expert, outputs=outputs)
                session = kind.open(whole, expert, 1)
            except StoreError as error:  # the user knows nothing of the copy
                raise StoreError(str(error).replace(str(whole), str(file))) from error
        accept.check_session(kind, expert, session)
        return Brought(expert, agreed.remarks, file=whole, is_stated=agreed.is_stated)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"kind '{expert.kind}' is neither a ModuleKind nor a FileKind; it cannot be imported")
    with running("kind", expert.kind, f"imported from {file}"):
        foreign = kind.read(file)
        torch_file.check_tensors(str(file), foreign.state)
        agreed = facts.agree(expert, foreign, kind, wishes)
        if {"labels", "input"} & agreed.missing.keys():
            raise facts.question(str(file), agreed.missing)
        expert = replace(agreed.expert, alternates=foreign.looks)
        accept.check_labels(expert)
        try:
            skeleton = bare_skeleton(kind, expert, optional=optional_of(foreign.state))
            taken = unwrapped(foreign, skeleton.state_dict(), str(file), wishes.prefix)
            check_layers(taken.layers, skeleton, str(file))
            state = kind.convert(taken.state, expert)
        except StoreError as error:
            raise StoreError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error
    accept.check_module(kind, expert, state)
    if agreed.missing:  # asked last: what is wrong with the file comes first
        raise facts.question(str(file), agreed.missing)
    remarks = (*agreed.remarks, *taken.remarks)
    return Brought(expert, remarks, state=state, is_stated=agreed.is_stated)


def bring_backbone(file: Path, expert: Expert, kind: Kind, wishes: Wishes) -> Brought:
    """Read the layers of a foreign file whose shape does not depend on labels, as an expert without labels.

    Raises as `bring` does, and ConfigError for a kind whose file cannot be taken apart.
    """
    check_file(file)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"a file of kind '{expert.kind}' has no separate head; leave --as-backbone out")
    with running("kind", expert.kind, f"imported from {file}"):
        foreign = kind.read(file)
        torch_file.check_tensors(str(file), foreign.state)
        # What its pictures are is said by the training that starts from it.
        agreed = facts.agree(expert, foreign, kind, wishes)
        if "input" in agreed.missing:
            raise facts.question(str(file), {"input": ""})
        taken = backbone(foreign, kind, agreed.expert, str(file), wishes.prefix)
    return Brought(replace(agreed.expert, labels=()), (*agreed.remarks, *taken.remarks), state=taken.state)


def check_file(path: Path) -> None:
    """Raise StoreError for a file without weights, which each kind would call damaged, whatever its ending is."""
    with readable(path, StoreError), regular.opened(path), path.open("rb") as file:
        start = file.read(len(_POINTER))
    if start == _POINTER:
        raise StoreError(f"{path}: a pointer of Git LFS; run `git lfs pull`, and import the file itself")
    if not start:
        raise StoreError(f"{path}: the file is empty; copy or download it again")


# From a file's tensors to those of a kind: exact names, behind one prefix. The tensors under a prefix are taken if they
# are all that the kind needs, and no other weights lie in the file. A file that holds more is refused until the user
# says the prefix (`--prefix`): nobody can tell what computes with the rest.


_INSIDE = re.compile(r"(?<![^./])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What torch writes into the names of parts that it wraps; it changes nothing that a network computes."""
_ENDS = (".", "/")
"""The last letter of a prefix: of a part of a network, or of a key of a dict."""
_COUNTER = "num_batches_tracked"
_FIGURE = re.compile(r"(^|[._/])(best|top|train|val|test)?_?(acc|accuracy|loss|epoch|step|lr|score|f1|map)\w*$", re.I)
"""How trainings call single numbers that they save beside the weights."""
_IGNORED_SETTINGS = frozenset({"training", "inplace", "momentum", "i", "np", "type", "p"})
"""Settings of layers that change nothing when they judge, and numbers by which a network counts its layers."""
_AROUND = {"DataParallel", "DistributedDataParallel", "OptimizedModule", "AveragedModel"}
"""Parts around a whole network that compute nothing themselves."""
_TO_ONNX = "export it as ONNX and import that with --kind onnx"


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Tensors and layers by the names of a kind, and sentences on what was taken."""

    state: dict[str, torch.Tensor]
    layers: Mapping[str, Layer] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def unwrapped(
    foreign: Foreign, wanted: Mapping[str, torch.Tensor], where: str, prefix: str = "", *, drop_rest: bool = False
) -> Unwrapped:
    """Return the tensors that a kind needs, whose skeleton has those of `wanted`, by its names.

    Those under `prefix` are taken, "" for the only ones that fit; with a prefix, or to `drop_rest`, others are left
    out. A file none of whose prefixes has all names is returned as it is, without the keys that all of it lies under.
    Raises StoreError, which begins with `where`.
    """
    state = {_INSIDE.sub("", name): value for name, value in foreign.state.items()}
    layers = {_INSIDE.sub("", f"{name}.").removesuffix("."): layer for name, layer in foreign.layers.items()}
    needed = [name for name in wanted if not name.endswith(_COUNTER)]
    ends = {name.removesuffix(needed[0]) for name in state if needed and name.endswith(needed[0])}
    found = sorted(
        start
        for start in ends
        if (not start or start.endswith(_ENDS)) and all(f"{start}{name}" in state for name in needed)
    )
    if prefix:
        found = [start for start in found if start.rstrip("./") == prefix.rstrip("./")]
        if not found:
            raise StoreError(f"{where}: no network of this kind under --prefix {prefix}")
    if not found:
        levels = {name.rpartition("/")[0] for name in state}
        level = f"{levels.pop()}/" if len(levels) == 1 and levels != {""} else ""
        own = {name.removeprefix(level): layer for name, layer in layers.items()}
        return Unwrapped({name.removeprefix(level): value for name, value in state.items()}, own)
    first, *others = found
    if any(not torch.equal(state[f"{first}{name}"], state[f"{other}{name}"]) for other in others for name in needed):
        prefixes = " or ".join(start.rstrip("./") or "." for start in found)
        raise StoreError(f"{where}: holds {len(found)} networks that fit; choose one with --prefix {prefixes}")
    used = {f"{start}{name}" for start in found for name in wanted}
    numbers = [name for name, value in state.items() if not value.dim() and _FIGURE.search(name)]
    free = {*used, *numbers}
    rest = [name for name, value in state.items() if name not in free and value.is_floating_point()]
    outside = [name for name in rest if not name.startswith(first) or (not first and "/" in name)]
    weights = [name for name in outside if state[name].dim()]
    if weights and not prefix and not drop_rest:
        raise StoreError(
            f"{where}: beside its network it holds {list_few(weights)}; if the network does not use these, give "
            f"--prefix {first.rstrip('./') or '.'}, else {_TO_ONNX}"
        )
    # What else lies inside of the network is refused by the kind, or known to it.
    inside = [] if drop_rest else [name for name in rest if name not in outside]
    taken = {name: state[f"{first}{name}"] for name in wanted if f"{first}{name}" in state}
    taken |= {name.removeprefix(first): state[name] for name in inside}
    own = {name.removeprefix(first): layer for name, layer in layers.items() if name.startswith(first)}
    root = first.removesuffix(".")
    if root in layers:
        own[""] = layers[root]
        above = [layer for name, layer in layers.items() if name != root and f"{first}/".startswith((f"{name}.", name))]
        if odd := [layer.name for layer in above if layer.name not in _AROUND]:
            raise StoreError(f"{where}: its network has further layers ({list_few(odd)}); {_TO_ONNX}")
    remarks = (f"took the weights under '{first}'",) if first else ()
    return Unwrapped(taken, own, remarks)


def backbone(foreign: Foreign, kind: ModuleKind, expert: Expert, where: str, prefix: str = "") -> Unwrapped:
    """Return the tensors of a kind's network but those of its head, whose shape depends on the number of labels.

    Raises StoreError if one is not there, or has another shape.
    """
    labels = [tuple(map(str, range(count))) for count in (1, 1000)]
    one, many = (bare_skeleton(kind, replace(expert, labels=own), optional=()) for own in labels)
    shapes = {name: tensor.shape for name, tensor in many.state_dict().items()}
    wanted = {name: tensor for name, tensor in one.state_dict().items() if tensor.shape == shapes.get(name)}
    taken = unwrapped(foreign, wanted, where, prefix, drop_rest=True)
    owners = tuple({f"{name.rpartition('.')[0]}." for name in wanted})
    check_layers({n: layer for n, layer in taken.layers.items() if f"{n}.".startswith(owners)}, one, where)
    counters = {name: tensor for name, tensor in wanted.items() if name.endswith(_COUNTER)}
    state = counters | {name: taken.state[name] for name in wanted if name in taken.state}
    if odd := [name for name, own in wanted.items() if name not in state or state[name].shape != own.shape]:
        what = f"{list_few(odd)}, which the file lacks or has in another shape; is it of another kind?"
        raise StoreError(f"{where}: {kind.name} needs {what}")
    exact = {name: state[name].detach().to(tensor.dtype).contiguous() for name, tensor in wanted.items()}
    return Unwrapped(exact, taken.layers, taken.remarks)


def check_layers(layers: Mapping[str, Layer], module: torch.nn.Module, where: str) -> None:
    """Compare the layers of a whole network with a skeleton's; raises StoreError if it computes something else."""
    faults = [f"it also has '{name}', a {layers[name].name}" for name in layers.keys() - dict(module.named_modules())]
    *_, head = ("", *(name for name, own in module.named_modules() if isinstance(own, torch.nn.Linear)))
    for name, own in module.named_modules():
        if (layer := layers.get(name)) is None:
            continue
        if layer.name != type(own).__name__:
            faults.append(f"'{name}' is a {layer.name}" if name else f"it is a {layer.name}")
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
        raise StoreError(f"{where}: its network is a different one: {list_few(faults, between='; ')}; {_TO_ONNX}")


def _plain(value: Any) -> Any:
    """Return a setting in one form: 3, (3, 3) and [3, 3] are the same size."""
    if not isinstance(value, list | tuple):
        return value
    values = [_plain(one) for one in value]
    return values[0] if values and all(one == values[0] for one in values) else values
