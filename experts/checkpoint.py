"""Opening foreign files of weights, for import alone: a pickle with `weights_only=True`, or a classifier's tensors.

Nothing that a file names is imported. Each name gets an inert stand-in that holds the file's data: the unpickler calls
what it may call, with arguments from the file, and ultralytics evaluates words of its networks' descriptions.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coe.errors import StoreError, list_few
from coe.store import torch_file
from coe.store.kinds import Foreign, Layer, ModuleKind
from experts import records

LEVEL = "/"
"""What stands in the names of tensors between the keys of nested dicts; within one dict names have dots."""
_DEEPEST = 8
"""Weights lie no deeper in nested dicts. A limit is needed, because a dict may also hold itself."""
_KNOWN = re.compile(
    r"torch\.(nn|optim)(\.\w+)+|torch\._dynamo\.eval_frame\.OptimizedModule"
    r"|(torchvision|torchmetrics|ultralytics|numpy|timm|mmengine|mmcv|omegaconf|ignite|accelerate|pytorch_lightning"
    r"|lightning|lightning_fabric|lightning_utilities|albumentations|experts)(\.\w+)+"
    r"|(collections|datetime|decimal|fractions|uuid|zoneinfo|typing(\.\w+)?|argparse|types|pathlib(\._local)?|_codecs)\.\w+"
    r"|builtins\.(frozenset|range|slice|complex|object|type|int|float|str|bool|bytes|list|dict|tuple|set|abs|len|max"
    r"|min|sum)|functools\.partial|(\w+\.)*(\w*Dict|CfgNode)"
)
"""Names that trainings write beside weights; a file with others is refused."""
_OURS = {
    "torchvision.models.resnet.ResNet": "Network",
    "torchvision.models.resnet.BasicBlock": "Block",
    "torchvision.models.resnet.Bottleneck": "Block",
}
"""Classes that compute what one of `experts.resnet` computes, and the name of that."""
_DICTS = re.compile(r"collections\.defaultdict|([a-z_]\w*\.)+(\w*Dict|CfgNode)")
_EMBEDDER = "resnet.embedder."
_HUGGING_FACE = {
    r"resnet\.embedder\.embedder\.convolution": "conv1",
    r"resnet\.embedder\.embedder\.normalization": "bn1",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.convolution": "layer{}.{}.downsample.0",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.normalization": "layer{}.{}.downsample.1",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.(\d)\.convolution": "layer{}.{}.conv{}",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.(\d)\.normalization": "layer{}.{}.bn{}",
}
"""Hugging Face's names of a ResNet's layers; torchvision counts stages and layers of a block from 1."""


class StandIn:
    """An object of a file: its attributes, by name, without any behaviour."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


class _Dict:
    """A class of dicts: its members are kept in a plain one, which takes attributes as well."""

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict()


def _stand_in(name: str) -> Callable[..., Any]:
    """Return what stands in for a class that a file names."""
    if name == "collections.deque":
        return lambda *arguments: []
    return _Dict if _DICTS.fullmatch(name) else type(_OURS.get(name, name.rpartition(".")[2]), (StandIn,), {})


def read_checkpoint(path: Path) -> Foreign:
    """Read the tensors of a state dict, of nested dicts, or of a whole network, and what its writer recorded.

    In the names, `LEVEL` stands between the keys of dicts. Raises StoreError if the file cannot be read, holds no
    weights, or names what no training writes.
    """
    named = torch_file.check_file(path)
    try:
        known = [(_stand_in(name), name) for name in filter(_KNOWN.fullmatch, named)]
        with torch.serialization.safe_globals(known):  # type: ignore[arg-type]
            content = torch_file.load(path)
    except pickle.UnpicklingError as error:
        raise StoreError(f"{path}: refused, {_why(named)}") from error
    state: dict[str, torch.Tensor] = {}
    layers: dict[str, Layer] = {}
    labels: tuple[str, ...] | None = None
    try:
        for prefix, found in _walked(content, "", set()):
            if isinstance(found, dict):
                state |= {f"{prefix}{name}": value for name, value in found.items()}
                continue
            labels = records.labels_of(vars(found).get("names"), 1) or labels
            for inside, part in _parts(found, prefix):
                state |= {f"{inside}{name}": value for name, value in _tensors(part)}
                layers |= {f"{inside}{name}".removesuffix("."): layer for name, layer in _layers(part)}
    except StoreError as error:
        raise StoreError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error
    except Exception as error:  # in a network that was put together by hand, anything may be missing or odd
        raise StoreError(f"{path}: its network is damaged ({type(error).__name__}); export it again") from error
    if not state:
        raise StoreError(f"{path}: holds no weights; give a state dict, or a checkpoint that holds one")
    torch_file.check_tensors(str(path), state, most_bytes=path.stat().st_size)
    settings = _plain_settings(content)
    record = records.of_checkpoint(settings)
    # What is as long as no tensor is no list of what the network gives.
    its = record.labels if any(value.shape[:1] == (len(record.labels or ()),) for value in state.values()) else None
    return Foreign(state, labels or its, layers, record.input_size, record.seen, record.unsaid, settings=settings)


def _is_network(value: Any) -> bool:
    return isinstance(value, StandIn) and {"_modules", "_parameters", "_buffers"} <= vars(value).keys()


def _walked(content: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in nested dicts and the whole networks with what stands before their names, each once."""
    if _is_network(content):
        yield prefix, content
    if not isinstance(content, dict) or id(content) in seen or prefix.count(LEVEL) > _DEEPEST:
        return
    seen.add(id(content))
    named = {name: value for name, value in content.items() if isinstance(name, str)}
    if any("_packed_params" in name for name in named):
        raise StoreError(
            "its network is quantised; save the network before quantisation, in fp32: `coe-experts prepare` "
            "makes other precisions"
        )
    yield prefix, {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    for name, value in named.items():
        yield from _walked(value, f"{prefix}{name}{LEVEL}", seen)


def _plain_settings(content: Any, depth: int = 0) -> Any:
    """Return what stands beside the weights as plain dicts: arguments of scripts, too, and no networks."""
    level = vars(content) if isinstance(content, StandIn) and not _is_network(content) else content
    if not isinstance(level, dict):
        return level if depth else {}
    if depth > _DEEPEST:
        return {}
    return {
        key: _plain_settings(value, depth + 1)
        for key, value in level.items()
        if isinstance(key, str | int) and not isinstance(value, torch.Tensor) and not _is_network(value)
    }


def _parts(network: StandIn, start: str) -> Iterator[tuple[str, StandIn]]:
    """Yield a network and its parts with their prefixes; a part that occurs twice, or inside itself, comes once."""
    seen: set[int] = set()
    waiting = [(start, network)]
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield prefix, part
        children = vars(part)["_modules"].items()
        waiting += reversed([(f"{prefix}{name}.", child) for name, child in children if _is_network(child)])


def _tensors(part: StandIn) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a part's own parameters and buffers, by name."""
    passing = vars(part).get("_non_persistent_buffers_set", ())
    for name, value in {**vars(part)["_parameters"], **vars(part)["_buffers"]}.items():
        if isinstance(value, torch.Tensor) and name not in passing:
            yield name, value.detach()


def _layers(part: StandIn) -> Iterator[tuple[str, Layer]]:
    """Yield what a part is, by "", and what computes in it and cannot be looked into, by name."""
    yield "", Layer(type(part).__name__, {name: value for name, value in vars(part).items() if _is_plain(value)})
    for name, child in vars(part)["_modules"].items():
        if child is not None and not _is_network(child):
            yield name, Layer(type(child).__name__, {})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str)


def _why(named: frozenset[str]) -> str:
    unknown = sorted(name for name in named if not _KNOWN.fullmatch(name))
    if not unknown:
        return "it is not a file of weights that can be opened safely; save the `state_dict()` alone with torch.save"
    return (
        f"it holds more than weights ({list_few(unknown, 3)}); save the network's `state_dict()` alone with "
        "torch.save, or export it as ONNX or safetensors, and import that"
    )


# Weights of a classifier, by torchvision's names


def read_classifier(kind: ModuleKind, activation: str, path: Path, foreign: Foreign | None) -> Foreign:
    """Return what a file of a classifier's weights holds, and what its training and the records beside it say.

    `activation` is the kind's, and `foreign` the content, None for a file that torch saved. Raises StoreError, also for
    another network's weights.
    """
    foreign = foreign or read_checkpoint(path)
    beside, contents, remarks = records.of_files(path)
    differs = records.another_network({**foreign.settings, **contents})
    if others := [f"{name} = {value}" for name, value in differs.items() if value != activation]:
        raise StoreError(
            f"{path}: its network has {list_few(others)}, and {kind.name} computes something else with its tensors; "
            "export it as ONNX and import that with --kind onnx"
        )
    own = records.Record(foreign.labels, foreign.input_size, foreign.seen, foreign.unsaid).beside(beside)
    return replace(
        foreign,
        state=_renamed(foreign.state),
        labels=own.labels,
        input_size=own.input_size,
        seen=own.seen,
        unsaid=own.unsaid,
        remarks=(*foreign.remarks, *remarks),
    )


def _renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return Hugging Face's tensors by torchvision's names, and a last layer behind a Dropout as the last."""
    if any(_EMBEDDER in name for name in state):
        return {_torchvision_name(name): value for name, value in state.items()}
    behind = {name for name in state if re.search(r"(?<![^./])fc\.\d", name)}
    if {name.rpartition("fc.")[2] for name in behind} != {"1.weight", "1.bias"}:
        return state
    return {name.replace("fc.1.", "fc.") if name in behind else name: value for name, value in state.items()}


def _torchvision_name(name: str) -> str:
    for theirs, ours in _HUGGING_FACE.items():
        if (found := re.search(theirs, name)) is not None:
            numbers = [int(one) + (place != 1) for place, one in enumerate(found.groups())]
            return f"{name[: found.start()]}{ours.format(*numbers)}{name[found.end() :]}"
    return re.sub(r"(?<![^./])classifier\.1\.", "fc.", name)
