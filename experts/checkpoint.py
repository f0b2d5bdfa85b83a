"""Opening a foreign `.pt` file, for import alone: a pickle, read with `weights_only=True` and a fixed list of classes.

The unpickler makes no object but tensors and the network parts listed here; any other name in the file stops it.
"""

from __future__ import annotations

import pickle
from pathlib import Path, PosixPath
from typing import Any

import torch

from coe import torch_file
from coe.errors import StoreError
from coe.kinds import Foreign
from experts import quiet_ultralytics

_NESTED = ("state_dict", "model_state_dict", "model", "net", "ema")
_DEEPEST = 8
"""Weights lie no deeper in dicts; one may also hold itself."""


def read_checkpoint(path: Path) -> Foreign:
    """Read a state dict (bare or under a usual key) or an ultralytics YOLO checkpoint.

    Raises StoreError if the file cannot be read, holds no weights, or names a class beyond the list.
    """
    torch_file.check_file(path)
    try:
        try:
            content = torch_file.load(path)
        except pickle.UnpicklingError:
            with torch.serialization.safe_globals(_ultralytics_classes()):
                content = torch_file.load(path)
    except pickle.UnpicklingError as error:
        raise StoreError(f"{path}: refused, {_why(path)}; export it as ONNX or safetensors and import that") from error
    try:
        found = _weights(content)
    except Exception as error:  # parts of a network that were put together by hand: anything may be missing or odd
        raise StoreError(f"{path}: its network is damaged ({type(error).__name__}); export it again") from error
    if found is None:
        raise StoreError(f"{path}: holds no weights; give a state dict or an ultralytics checkpoint")
    torch_file.check_tensors(str(path), found.state)
    return found


def _weights(content: Any) -> Foreign | None:
    for _ in range(_DEEPEST):
        if isinstance(content, torch.nn.Module):
            names = content.__dict__.get("names")
            labels = tuple(str(names[key]) for key in sorted(names)) if isinstance(names, dict) else None
            return Foreign(_tensors(content), labels)
        if not isinstance(content, dict):
            return None
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            return Foreign(dict(content))
        # An ultralytics training keeps its averaged weights under `ema` and may leave `model` empty.
        inner = (content.get(key) for key in ("ema", *_NESTED))
        content = next((one for one in inner if isinstance(one, dict | torch.nn.Module)), None)
    return None


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Collect parameters and buffers by hand: `state_dict` would run hooks that the file brought.

    A part that stands twice, or in itself, is looked at once.
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, torch.nn.Module]] = [("", module)]
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        inside = part.__dict__
        for kind in ("_parameters", "_buffers"):
            for name, value in inside[kind].items():
                if isinstance(value, torch.Tensor) and name not in inside.get("_non_persistent_buffers_set", ()):
                    found[f"{prefix}{name}"] = value.detach()
        children = [(f"{prefix}{n}.", one) for n, one in inside["_modules"].items() if isinstance(one, torch.nn.Module)]
        waiting += reversed(children)
    return found


def _ultralytics_classes() -> list[Any]:
    """Return what an ultralytics checkpoint is made of; nothing where ultralytics is not installed."""
    try:
        quiet_ultralytics.prepare()
    except ModuleNotFoundError:
        return []
    import numpy as np
    from torch import nn
    from ultralytics.nn.modules import C3, DFL, SPPF, Bottleneck, Concat, Conv, Detect
    from ultralytics.nn.tasks import DetectionModel
    from ultralytics.utils import IterableSimpleNamespace

    layers = [nn.Sequential, nn.ModuleList, nn.Conv2d, nn.BatchNorm2d, nn.SiLU, nn.MaxPool2d, nn.Upsample, nn.Identity]
    parts = [Detect, Conv, C3, Bottleneck, SPPF, Concat, DFL]
    # Names that files of earlier releases use for the same things.
    former: list[Any] = [(part, f"ultralytics.nn.modules.{part.__name__}") for part in parts]
    former.append((IterableSimpleNamespace, "ultralytics.yolo.utils.IterableSimpleNamespace"))
    # Measures are kept as numpy numbers: a number, made from bytes, of one of these types.
    scalar = np._core.multiarray.scalar
    numbers = [(scalar, f"numpy.{package}.multiarray.scalar") for package in ("_core", "core")]
    types = [np.dtype, type(np.dtype(np.float64)), type(np.dtype(np.float32)), type(np.dtype(np.int64))]
    return [DetectionModel, IterableSimpleNamespace, PosixPath, *parts, *layers, *former, *numbers, *types]


def _why(path: Path) -> str:
    try:
        with torch.serialization.safe_globals(_ultralytics_classes()):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # a file that is not a zip archive: whatever it is, it is not opened
        return "it is not a file of weights that can be opened safely"
    if any(name.startswith("models.") for name in names):
        return "it is a checkpoint of the legacy YOLOv5 repository"
    return "it holds more than weights (" + ", ".join(sorted(names)[:3]) + ")" if names else "it is damaged"
