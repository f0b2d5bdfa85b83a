"""What stands in a foreign pickle for the classes and functions that it names: a file gets no code to call.

Nothing that a file names is imported. Each name has a stand-in here, which holds the file's data and does nothing: the
unpickler calls what it may call, with arguments from the file, and ultralytics evaluates words of its networks'
descriptions. A name of no family below is refused.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

_NETWORK = re.compile(
    r"torch\.nn\.(modules|parallel)(\.\w+)*\.\w+|torch\.optim\.swa_utils\.AveragedModel"
    r"|torch\._dynamo\.eval_frame\.OptimizedModule|torchvision\.(models|ops)(\.\w+)*\.\w+"
    r"|ultralytics\.nn\.(modules|tasks)(\.\w+)*"
)
"""Parts of networks: their tensors count."""
_DICTS = re.compile(r"collections\.defaultdict|([a-z_]\w*\.)+(\w*Dict|CfgNode)")
_LISTS = re.compile(r"collections\.deque")
_ARGUMENTS = re.compile(r"argparse\.Namespace|types\.SimpleNamespace|(torchvision\.transforms|albumentations)(\.\w+)+")
"""The arguments of a training, and of what it did with its pictures: they may say what its network saw."""
_NUMBERS = re.compile(r"numpy\.(core|_core)\.multiarray\.(scalar|_reconstruct)")
_BESIDE = re.compile(
    r"(datetime|decimal|fractions|uuid|zoneinfo|typing)\.\w+(\.\w+)?"
    r"|pathlib(\._local)?\.\w*Path|builtins\.(frozenset|range|slice|complex|object|type|int|float|str|bool)"
    r"|builtins\.(bytes|list|dict|tuple|abs|len|max|min|sum)"
    r"|functools\.partial|numpy(\.\w+)+|torch\.optim(\.\w+)+"
    r"|ultralytics\.(yolo\.)?utils(\.\w+)+|(omegaconf|torchmetrics|timm|mmengine|mmcv|ignite|accelerate)(\.\w+)+"
    r"|(pytorch_lightning|lightning|lightning_fabric|lightning_utilities)(\.\w+)+"
)
"""Data beside the weights: arguments, dates, paths, numbers, the states of a training."""


_FLOATS = {"f4": "<f", "f8": "<d"}
"""NumPy's words for floats, in the form of `struct`."""


class NetworkPart:
    """A part of a network: its tensors and parts, by name, without any behaviour; `named` is its class's full name."""

    named = ""

    def __init__(self, *arguments: object) -> None:
        """Refuse to be made from arguments: torch saves the state of a part, not a call."""
        raise TypeError("it asks for parts of a network to be made, but it should hold them")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class _Ignored:
    """Data beside the weights. None of it is kept but the word by which NumPy names a type."""

    def __init__(self, *arguments: object) -> None:
        self.word = arguments[0] if arguments and isinstance(arguments[0], str) else ""

    def __setstate__(self, state: object) -> None:
        pass


class Numbers:
    """Numbers of NumPy: an array, or one number."""

    def __init__(self, of: object = None, content: object = b"", *arguments: object) -> None:
        self._set(of, content)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) == 5:
            self._set(state[2], state[4])

    def _set(self, of: object, content: object) -> None:
        is_float = isinstance(of, _Ignored) and of.word in _FLOATS and isinstance(content, bytes)
        self.values = [one for (one,) in struct.iter_unpack(_FLOATS[of.word], content)] if is_float else []


class Arguments(_Ignored):
    """The arguments of a training script, or the settings of a transform, by name; `named` is its class's full name."""

    named = ""

    def __init__(self, *arguments: object) -> None:
        if arguments and isinstance(arguments[0], str):  # a member of an Enum, as `InterpolationMode`
            self.word = arguments[0]

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Dict:
    """A class of dicts: its members are kept in a plain one, which takes attributes as well."""

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict()


def _list(*arguments: object) -> list[object]:
    return []


def stand_ins(names: Iterable[str]) -> list[tuple[Callable[..., Any], str]]:
    """Return a stand-in for each name of a family, as torch takes them (`torch.serialization.safe_globals`)."""
    return [(stand_in, name) for name in names if (stand_in := _of(name)) is not None]


def _of(name: str) -> Callable[..., Any] | None:
    if _NETWORK.fullmatch(name):
        return type(name.rpartition(".")[2], (NetworkPart,), {"named": name})
    if _DICTS.fullmatch(name):
        return _Dict
    if _LISTS.fullmatch(name):
        return _list
    if _ARGUMENTS.fullmatch(name):
        return type(name.rpartition(".")[2], (Arguments,), {"named": name})
    if _NUMBERS.fullmatch(name):
        return Numbers
    return type(name.rpartition(".")[2], (_Ignored,), {}) if _BESIDE.fullmatch(name) else None
