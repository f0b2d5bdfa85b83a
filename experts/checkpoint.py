"""Opening a foreign `.pt` file, for import alone: a pickle, read with `weights_only=True`; see `experts.stand_ins`."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from coe.errors import StoreError, list_few
from coe.store import torch_file
from coe.store.kinds import Foreign, Layer
from experts.script_facts import another_network
from experts.stand_ins import Arguments, NetworkPart, stand_ins
from experts.stated_facts import (
    entries,
    labels_in_text,
    mean_alone,
    stated_labels,
    stated_normalization,
    stated_normalizations,
    takes_blue_first,
)
from experts.stated_steps import stated_sight
from experts.ultralytics_facts import labels_of

_USUAL = ("state_dict", "model_state_dict", "model", "net")
"""Keys that say no more than that weights lie under them."""
_DEEPEST = 8
"""Weights lie no deeper in nested dicts. A limit is needed, because a dict may also hold itself."""
_ARGUMENTS = ("train_args", "args", "hyper_parameters", "pretrained_cfg")
"""Keys of the arguments of a training; the last is timm's in config.json."""
_SIZES = re.compile(r"(img|image|im|input)_?(size|sz|shape)|imgsz|resolution", re.IGNORECASE)
"""Keys of the size of pictures, which may be that before a crop, or of features: they are told."""
_MOST_PIXELS = 4096
_OWN = ("mean", "std", "unsaid", "bgr", "sight", "side", "other", "sizes")
"""Words among the arguments for what was made of the file's words."""
_YOLOV5 = {"Bottleneck", "C3", "DFL", "SPPF", "Concat", "Conv", "Detect", "DetectionModel"}
"""The classes of ultralytics in a checkpoint of a YOLOv5."""
_FOREIGN_NETWORK = re.compile(r"timm\.models\.\w+(\.\w+)*")
"""Classes whose whole networks are not read."""
_TORCH = re.compile(
    r"torch\.(_utils|_tensor|nn\.parameter|serialization|storage)\.\w+|torch\.\w+|collections\.\w+|_codecs\.\w+"
    r"|builtins\.set"
)
"""Names that stand in every file of torch."""
_TO_ONNX = "; export it as ONNX where it was made, `{command}`, and import that with --kind onnx"


def read_checkpoint(path: Path) -> Foreign:
    """Read the tensors of a state dict, of nested dicts, or of a whole network; names are joined with dots.

    If all tensors lie under one usual key, as `state_dict`, their names do not have it. Raises StoreError if the file
    cannot be read, holds no weights, or names a class that has no stand-in.
    """
    named = torch_file.check_file(path)
    if refusal := _another_yolo(named):
        raise StoreError(f"{path}: {refusal}")
    try:
        with torch.serialization.safe_globals(stand_ins(named)):  # type: ignore[arg-type]
            content = torch_file.load(path)
    except pickle.UnpicklingError as error:
        raise StoreError(f"{path}: refused, {_why(named)}") from error
    if isinstance(content, dict) and content and all(isinstance(value, torch.Tensor) for value in content.values()):
        weights = Foreign(dict(content))
    else:
        try:
            weights = _collected(content)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        except Exception as error:  # in a network that was put together by hand, anything may be missing or odd
            raise StoreError(f"{path}: its network is damaged ({type(error).__name__}); export it again") from error
    if not weights.state and (whole := sorted(filter(_FOREIGN_NETWORK.fullmatch, named))):
        raise StoreError(
            f"{path}: it holds a whole network of another library ({whole[0]}); save its `state_dict()` alone with "
            "torch.save, or export it as ONNX, and import that"
        )
    if not weights.state:
        raise StoreError(f"{path}: holds no weights; give a state dict, or a checkpoint that holds one")
    torch_file.check_tensors(str(path), weights.state, most_bytes=path.stat().st_size)
    return weights


def _collected(content: Any) -> Foreign:
    """Return the tensors of a file, and the layers and labels of its networks."""
    weights: list[_Weights] = list(_walked(content, (), set()))
    above = [found.keys for found in weights if any(value.dim() for value in found.tensors.values())]
    both = zip(min(above), max(above), strict=False) if above else ()
    shared = tuple(key for key, _ in takewhile(lambda pair: pair[0] == pair[1] and pair[0] in _USUAL, both))
    state: dict[str, torch.Tensor] = {}
    layers: dict[str, Layer] = {}
    labels: tuple[str, ...] | None = None
    for found in weights:
        if found.keys[: len(shared)] != shared:  # counts and measures beside the weights
            continue
        prefix = "".join(f"{key}." for key in found.keys[len(shared) :])
        state |= {f"{prefix}{name}": value for name, value in found.tensors.items()}
        if found.network is not None:
            layers |= {f"{prefix}{name}".removesuffix("."): layer for name, layer in _layers(found.network).items()}
            if labels is None or "ema" in found.keys:
                labels = labels_of(found.network.__dict__.get("names"), "its network") or labels
    labels = labels or stated_labels(content, "beside its weights")
    return Foreign(state, labels, layers, arguments=arguments_of(content))


def without_normalisation(weights: Foreign) -> Foreign:
    """Take a mean and a standard deviation of three channels out of the tensors, into the arguments of the training."""
    state = weights.state
    means = [name for name in state if re.fullmatch(r"(.*\.)?(pixel_)?mean", name)]
    pairs = [(name, other) for name in means if (other := f"{name.removesuffix('mean')}std") in state]
    if len(pairs) != 1:
        return weights
    seen = stated_normalization(dict(zip(("mean", "std"), (state[name] for name in pairs[0]), strict=True)))
    if seen is None or weights.arguments.get("mean", seen[0]) != seen[0]:
        return weights
    rest = {name: value for name, value in state.items() if name not in pairs[0]}
    return replace(weights, state=rest, arguments={**weights.arguments, "mean": seen[0], "std": seen[1]})


@dataclass(frozen=True, slots=True)
class _Weights:
    """The tensors of one dict, or of one whole network, by name, and the keys that lead to it."""

    keys: tuple[str, ...]
    tensors: dict[str, torch.Tensor]
    network: NetworkPart | None = None


def _walked(content: Any, keys: tuple[str, ...], seen: set[int]) -> Iterator[_Weights]:
    """Yield the weights in nested dicts, each dict once: it may also hold itself."""
    if isinstance(content, NetworkPart):
        yield _Weights(keys, _tensors(content), content)
    if not isinstance(content, dict) or id(content) in seen or len(keys) > _DEEPEST:
        return
    seen.add(id(content))
    named = {name: value for name, value in content.items() if isinstance(name, str)}
    if any("_packed_params" in name for name in named):
        raise StoreError("its network is quantised; save it as it was before, in fp32: other precisions are made here")
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    if tensors:
        yield _Weights(keys, tensors)
    for name, value in named.items():
        yield from _walked(value, (*keys, name), seen)


def with_metadata(path: Path, foreign: Foreign) -> Foreign:
    """Add what the metadata of another program's safetensors say of labels and of its training; raises StoreError."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    labels = labels_in_text(metadata, str(path))
    return replace(foreign, labels=labels, arguments=arguments_of(entries(metadata)))


def arguments_of(content: Any) -> dict[str, Any]:
    """Return the arguments of a training that lie beside its weights, plain ones alone; empty if there are none.

    `mean` and `std` may stand anywhere. `bgr` says that a configuration leaves the order of OpenCV's colours. `sight`
    and `side` are what `stated_sight` says, `sizes` what else is named of sizes, in words, `other` is what
    `another_network` says, and `unsaid` is as in `Foreign`.
    """
    if not isinstance(content, dict):
        return {}
    found = next((content[key] for key in _ARGUMENTS if key in content), None)
    arguments = found if isinstance(found, dict) else vars(found) if isinstance(found, Arguments) else {}
    sight = stated_sight(content)
    named: dict[str, Any] = {"sight": sight.fields, "side": sight.size} if sight.size else {}
    unsaid = dict(sight.unsaid)
    plain = {
        name: value
        for name, value in arguments.items()
        if isinstance(name, str) and name not in _OWN and _is_plain(value)
    }
    pairs = stated_normalizations(content)
    if len(pairs) == 1:
        named |= dict(zip(("mean", "std"), pairs[0], strict=True)) | {"bgr": takes_blue_first(content)}
    elif pairs:
        unsaid["mean"] = "the file names several means and deviations; say with --normalize which count"
    elif mean_alone({**content, **arguments}, deep=False):
        unsaid["mean"] = "the file names a mean, and no deviation beside it; say with --normalize what it takes"
    elif sight.size and "mean" not in sight.fields:
        unsaid["mean"] = (
            "its steps bring pictures to size, and it names no normalisation; say with --normalize what it takes, as "
            "0..1 or imagenet"
        )
    named |= {"unsaid": unsaid} if unsaid else {}
    named |= {"sizes": sizes} if (sizes := _sizes({**content, **arguments})) and not sight.size else {}
    named |= {"other": other} if (other := another_network(content)) else {}
    return plain | named


def _sizes(level: Mapping[Any, Any]) -> str:
    """Return what a level names as the size of pictures, in words; "" if it names none."""
    named = {key: value for key, value in level.items() if isinstance(key, str) and _SIZES.fullmatch(key)}
    return ", ".join(f"{key} = {value}" for key, value in named.items() if _are_pixels(value))


def _are_pixels(value: Any) -> bool:
    each = value if isinstance(value, list | tuple) else [value]
    return bool(each) and all(type(one) is int and 0 < one <= _MOST_PIXELS for one in each)


def _parts(network: NetworkPart) -> Iterator[tuple[str, NetworkPart]]:
    """Yield a network and its parts with their prefixes; a part that occurs twice, or inside itself, comes once."""
    seen: set[int] = set()
    waiting = [("", network)]
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield prefix, part
        children = part.__dict__["_modules"].items()
        waiting += reversed([(f"{prefix}{name}.", child) for name, child in children if isinstance(child, NetworkPart)])


def _tensors(network: NetworkPart) -> dict[str, torch.Tensor]:
    """Return parameters and buffers, by name."""
    return {
        f"{prefix}{name}": value.detach()
        for prefix, part in _parts(network)
        for kind in ("_parameters", "_buffers")
        for name, value in part.__dict__[kind].items()
        if isinstance(value, torch.Tensor) and name not in part.__dict__.get("_non_persistent_buffers_set", ())
    }


def _layers(network: NetworkPart) -> dict[str, Layer]:
    """Return what each part of a network is, by its name."""
    found: dict[str, Layer] = {}
    for prefix, part in _parts(network):
        plain = {name: value for name, value in part.__dict__.items() if _is_plain(value)}
        found[prefix.removesuffix(".")] = Layer(type(part).__name__, plain)
        for name, child in part.__dict__["_modules"].items():
            if child is not None and not isinstance(child, NetworkPart):  # it computes, and cannot be looked into
                found[f"{prefix}{name}"] = Layer(type(child).__name__, {})
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str)


def _another_yolo(named: frozenset[str]) -> str | None:
    """Say what to do with the checkpoint of a YOLO that is not ultralytics' YOLOv5, from what its pickle names."""
    if any(re.match(r"(yolov\d+\.)?models\.(yolo|common|experimental)\.", name) for name in named):
        command = "python export.py --weights FILE --include onnx"
        return "it is a checkpoint of the legacy YOLOv5 (or YOLOv7) repository" + _TO_ONNX.format(command=command)
    foreign = {name.rpartition(".")[2] for name in named if re.match(r"ultralytics\.nn\.", name)} - _YOLOV5
    if not foreign:
        return None
    few = list_few(sorted(foreign), 3)
    command = "yolo export model=FILE format=onnx"
    return f"it is an ultralytics network other than a YOLOv5 detector ({few})" + _TO_ONNX.format(command=command)


def _why(named: frozenset[str]) -> str:
    known = {name for _, name in stand_ins(named)}
    unknown = sorted(name for name in named if name not in known and not _TORCH.fullmatch(name))
    if not unknown:
        return "it is not a file of weights that can be opened safely; save the `state_dict()` alone with torch.save"
    return (
        f"it holds more than weights ({list_few(unknown, 3)}); save the network's `state_dict()` alone with "
        "torch.save, or export it as ONNX or safetensors, and import that"
    )
