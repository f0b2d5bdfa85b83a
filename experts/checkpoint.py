"""Opening a foreign `.pt` file, for import alone: a pickle, read with `weights_only=True` and a fixed list of names.

Law: a file gets no code to call. The classes that a network's file names are not imported. Each has a stand-in here,
which holds the file's data and does nothing. (The unpickler calls the classes that it may make, with arguments from the
file, and ultralytics evaluates words of its networks' descriptions.) Any other name in the file is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from coe.errors import StoreError
from coe.store import torch_file
from coe.store.kinds import Foreign

_NESTED = ("state_dict", "model_state_dict", "model", "net", "ema")
_DEEPEST = 8
"""Weights lie no deeper in nested dicts. A limit is needed, because a dict may also hold itself."""
_LAYERS = {
    "activation": ("SiLU",),
    "batchnorm": ("BatchNorm2d",),
    "container": ("ModuleList", "Sequential"),
    "conv": ("Conv2d",),
    "linear": ("Identity",),
    "pooling": ("MaxPool2d",),
    "upsampling": ("Upsample",),
}
_ULTRALYTICS = {
    "block": ("Bottleneck", "C3", "DFL", "SPPF"),
    "conv": ("Concat", "Conv"),
    "head": ("Detect",),
}


class _NetworkPart:
    """A part of a network: its tensors and parts, by name, without any behaviour."""

    def __init__(self, *arguments: object) -> None:
        """Refuse to be made from arguments: torch saves the state of a part, not a call."""
        raise TypeError("it asks for parts of a network to be made, but it should hold them")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class _Ignored:
    """Data beside the weights, such as paths, settings and metrics. None of it is kept."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_PARTS = (
    *(f"torch.nn.modules.{file}.{name}" for file, names in _LAYERS.items() for name in names),
    *(f"ultralytics.nn.modules.{file}.{name}" for file, names in _ULTRALYTICS.items() for name in names),
    # The names of the same classes in files of earlier releases.
    *(f"ultralytics.nn.modules.{name}" for names in _ULTRALYTICS.values() for name in names),
    "ultralytics.nn.tasks.DetectionModel",
)
_BESIDE = (
    "ultralytics.utils.IterableSimpleNamespace",
    "ultralytics.yolo.utils.IterableSimpleNamespace",
    "pathlib.PosixPath",
    # Metrics are stored as numpy numbers.
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    *(f"numpy.dtypes.{name}DType" for name in ("Float64", "Float32", "Int64")),
)
_STAND_INS: list[Any] = [*((_NetworkPart, name) for name in _PARTS), *((_Ignored, name) for name in _BESIDE)]


def read_checkpoint(path: Path) -> Foreign:
    """Read a state dict (bare or under a usual key) or an ultralytics YOLO checkpoint.

    Raises StoreError if the file cannot be read, holds no weights, or names a class that is not on the list.
    """
    torch_file.check_file(path)
    try:
        try:
            content = torch_file.load(path)
        except pickle.UnpicklingError:
            with torch.serialization.safe_globals(_STAND_INS):
                content = torch_file.load(path)
    except pickle.UnpicklingError as error:
        raise StoreError(f"{path}: refused, {_why(path)}; export it as ONNX or safetensors and import that") from error
    try:
        weights = _weights(content)
    except Exception as error:  # in a network that was put together by hand, anything may be missing or odd
        raise StoreError(f"{path}: its network is damaged ({type(error).__name__}); export it again") from error
    if weights is None:
        raise StoreError(f"{path}: holds no weights; give a state dict or an ultralytics checkpoint")
    torch_file.check_tensors(str(path), weights.state, most_bytes=path.stat().st_size)
    return weights


def _weights(content: Any) -> Foreign | None:
    for _ in range(_DEEPEST):
        if isinstance(content, _NetworkPart):
            names = content.__dict__.get("names")
            labels = tuple(str(names[key]) for key in sorted(names)) if isinstance(names, dict) else None
            return Foreign(_tensors(content), labels)
        if not isinstance(content, dict):
            return None
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            return Foreign(dict(content))
        # An ultralytics training keeps its averaged weights under `ema` and may leave `model` empty.
        inner = (content.get(key) for key in ("ema", *_NESTED))
        content = next((value for value in inner if isinstance(value, dict | _NetworkPart)), None)
    return None


def _tensors(module: _NetworkPart) -> dict[str, torch.Tensor]:
    """Collect parameters and buffers, by name.

    A part that occurs twice, or inside itself, is visited once.
    """
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, _NetworkPart]] = [("", module)]
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        inside = part.__dict__
        for kind in ("_parameters", "_buffers"):
            for name, value in inside[kind].items():
                if isinstance(value, torch.Tensor) and name not in inside.get("_non_persistent_buffers_set", ()):
                    tensors[f"{prefix}{name}"] = value.detach()
        children = [
            (f"{prefix}{n}.", child) for n, child in inside["_modules"].items() if isinstance(child, _NetworkPart)
        ]
        waiting += reversed(children)
    return tensors


def _why(path: Path) -> str:
    try:
        with torch.serialization.safe_globals(_STAND_INS):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # a file that is not a zip archive is not opened, whatever it is
        return "it is not a file of weights that can be opened safely"
    if any(name.startswith("models.") for name in names):
        return "it is a checkpoint of the legacy YOLOv5 repository"
    return "it holds more than weights (" + ", ".join(sorted(names)[:3]) + ")" if names else "it is damaged"
