"""Opening a foreign `.pt` file, for import alone: a pickle, read with `weights_only=True`.

Nothing that a file names is imported. Each name gets an inert stand-in that holds the file's data: the unpickler calls
what it may call, with arguments from the file, and ultralytics evaluates words of its networks' descriptions.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from coe.errors import StoreError, list_few
from coe.store import torch_file
from coe.store.kinds import Foreign, Layer
from experts import records
from experts.ultralytics_facts import labels_of

LEVEL = "/"
"""What stands in the names of tensors between the keys of nested dicts; within one dict names have dots."""
_DEEPEST = 8
"""Weights lie no deeper in nested dicts. A limit is needed, because a dict may also hold itself."""
_KNOWN = re.compile(
    r"torch\.(nn|optim)(\.\w+)+|torch\._dynamo\.eval_frame\.OptimizedModule"
    r"|(torchvision|torchmetrics|ultralytics|numpy|timm|mmengine|mmcv|omegaconf|ignite|accelerate|pytorch_lightning"
    r"|lightning|lightning_fabric|lightning_utilities|albumentations)(\.\w+)+"
    r"|(collections|datetime|decimal|fractions|uuid|zoneinfo|typing(\.\w+)?|argparse|types|pathlib(\._local)?|_codecs)\.\w+"
    r"|builtins\.(frozenset|range|slice|complex|object|type|int|float|str|bool|bytes|list|dict|tuple|set|abs|len|max"
    r"|min|sum)|functools\.partial|(\w+\.)*(\w*Dict|CfgNode)"
)
"""Names that trainings write beside weights; a file with others is refused."""
_DICTS = re.compile(r"collections\.defaultdict|([a-z_]\w*\.)+(\w*Dict|CfgNode)")
_YOLOV5 = {"Bottleneck", "C3", "DFL", "SPPF", "Concat", "Conv", "Detect", "DetectionModel"}
"""The classes of ultralytics in a checkpoint of a YOLOv5."""
_TO_ONNX = "; export it as ONNX where it was made, `{command}`, and import that with --kind onnx"


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


def _list(*arguments: object) -> list[object]:
    return []


def _stand_ins(names: Iterable[str]) -> list[tuple[Callable[..., Any], str]]:
    """Return a stand-in for each known name, as torch takes them (`torch.serialization.safe_globals`)."""
    found: list[tuple[Callable[..., Any], str]] = []
    for name in filter(_KNOWN.fullmatch, names):
        own = type(name.rpartition(".")[2], (StandIn,), {})
        found.append((_Dict if _DICTS.fullmatch(name) else _list if name == "collections.deque" else own, name))
    return found


def read_checkpoint(path: Path) -> Foreign:
    """Read the tensors of a state dict, of nested dicts, or of a whole network, and what its writer recorded.

    In the names, `LEVEL` stands between the keys of dicts. Raises StoreError if the file cannot be read, holds no
    weights, or names what no training writes.
    """
    named = torch_file.check_file(path)
    if refusal := _another_yolo(named):
        raise StoreError(f"{path}: {refusal}")
    try:
        with torch.serialization.safe_globals(_stand_ins(named)):  # type: ignore[arg-type]
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
            else:
                state |= {f"{prefix}{name}": value for name, value in _tensors(found)}
                layers |= {f"{prefix}{name}": layer for name, layer in _layers(found)}
                labels = labels_of(vars(found).get("names"), f"{path}: its network") or labels
    except StoreError as error:
        raise StoreError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error
    except Exception as error:  # in a network that was put together by hand, anything may be missing or odd
        raise StoreError(f"{path}: its network is damaged ({type(error).__name__}); export it again") from error
    if not state:
        raise StoreError(f"{path}: holds no weights; give a state dict, or a checkpoint that holds one")
    torch_file.check_tensors(str(path), state, most_bytes=path.stat().st_size)
    settings = _plain_settings(content)
    record = records.of_checkpoint(settings)
    return Foreign(
        state, labels or record.labels, layers, record.input_size, record.seen, record.unsaid, settings=settings
    )


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
        raise StoreError("its network is quantised; save it as it was before, in fp32: other precisions are made here")
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
        if isinstance(key, str) and not isinstance(value, torch.Tensor) and not _is_network(value)
    }


def _parts(network: StandIn) -> Iterator[tuple[str, StandIn]]:
    """Yield a network and its parts with their prefixes; a part that occurs twice, or inside itself, comes once."""
    seen: set[int] = set()
    waiting = [("", network)]
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield prefix, part
        children = vars(part)["_modules"].items()
        waiting += reversed([(f"{prefix}{name}.", child) for name, child in children if _is_network(child)])


def _tensors(network: StandIn) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers, by name."""
    for prefix, part in _parts(network):
        for kind in ("_parameters", "_buffers"):
            for name, value in vars(part)[kind].items():
                if isinstance(value, torch.Tensor) and name not in vars(part).get("_non_persistent_buffers_set", ()):
                    yield f"{prefix}{name}", value.detach()


def _layers(network: StandIn) -> Iterator[tuple[str, Layer]]:
    """Yield what each part of a network is, by its name."""
    for prefix, part in _parts(network):
        plain = {name: value for name, value in vars(part).items() if _is_plain(value)}
        yield prefix.removesuffix("."), Layer(type(part).__name__, plain)
        for name, child in vars(part)["_modules"].items():
            if child is not None and not _is_network(child):  # it computes, and cannot be looked into
                yield f"{prefix}{name}", Layer(type(child).__name__, {})


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
    unknown = sorted(name for name in named if not _KNOWN.fullmatch(name))
    if not unknown:
        return "it is not a file of weights that can be opened safely; save the `state_dict()` alone with torch.save"
    return (
        f"it holds more than weights ({list_few(unknown, 3)}); save the network's `state_dict()` alone with "
        "torch.save, or export it as ONNX or safetensors, and import that"
    )
