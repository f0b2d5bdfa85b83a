"""Opening a file that torch saved, for import alone; the memory that it takes is bounded before it is opened.

A pickle is read with `weights_only=True`, so nothing in it runs; but an archive can unpack to a thousand times its
size, and a few bytes can claim a tensor that no memory can hold.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from coe.errors import StoreError, first_line, readable
from coe.store.outputs import is_finite

_MOST_ENTRIES = 10_000
_MOST_PICKLE_BYTES = 16 << 20
"""The pickle of a checkpoint of hundreds of layers, without its tensors, is smaller than 1 MiB."""
_MOST_STEPS = 400_000
"""A tensor takes some 30 steps, so this is more than `_MOST_ENTRIES` tensors need; to count them takes seconds."""
_MAKERS = re.compile(r"(builtins|__builtin__) bytearray|torch(\.cuda|\.sparse)* \w*Tensor|torch\._tensor Tensor")
"""Callables that allocate as many zeros as a pickle names. Saved weights never call these."""
_BEGINNINGS = (b"PK\3\4", b"\x80")
"""Those of archives and of pickles, as torch writes them."""
_LEGACY_PICKLES = 5
"""Before 1.6, torch wrote this many pickles one after another, then the numbers."""
_TAKEN = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
}


def check_file(path: Path) -> frozenset[str]:
    """Check a file before torch opens it; return the names of the classes and functions that its pickles want.

    Raises StoreError if opening it would take more memory than its size, and if it is no file of torch's weights.
    """
    with readable(path, StoreError), path.open("rb") as file:
        if not_weights := _other_file(path, file.read(512)):
            raise StoreError(f"{path}: {not_weights}")
        file.seek(0)
        named = _check_archive(path) if _is_archive(path) else _check_pickles(path, file)
    return frozenset(named)


def _other_file(path: Path, start: bytes) -> str | None:
    """Say what a file is, by its first bytes, if it is a file of another kind that users take for weights."""
    if start[8:10] == b'{"':
        return "a safetensors file; give it a name that ends in .safetensors"
    if not start.startswith(_BEGINNINGS):
        if path.suffix.lower() == ".onnx":
            return "an ONNX model; import it with --kind onnx"
        return (
            "not written by torch.save; save the network's `state_dict()` with it, or as safetensors, or export the "
            "network as ONNX where it was made, and import that with --kind onnx"
        )
    return None


def load(path: Path) -> Any:
    """Return the object that torch saved, on the CPU.

    Raises StoreError, and UnpicklingError for a file that holds more than weights.
    """
    try:
        with warnings.catch_warnings():
            # torch warns about pickle protocols before it refuses; only the refusal counts.
            warnings.simplefilter("ignore")
            # torch gets exactly the entries that were checked: two readers of archives may see different entries.
            source = _repacked(path) if _is_archive(path) else path
            return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # of hostile bytes, the unpickler raises nearly anything, MemoryError too
        raise StoreError(f"{path}: cannot be read as a PyTorch file ({_visible_line(error)})") from error


def check_tensors(where: str, state: Mapping[Any, Any], *, most_bytes: int | None = None) -> None:
    """Raise StoreError for a state dict that cannot be weights; `where` begins the sentence.

    Weights are plain dense tensors of finite numbers in memory, whose elements do not overlap. They take no more bytes
    than `most_bytes`, the size of their file: an old format would leave missing bytes as uninitialised memory.
    """
    if not state:
        raise StoreError(f"{where}: holds no tensors")
    if most_bytes is not None:
        dense = [value for value in state.values() if isinstance(value, torch.Tensor) and value.layout is torch.strided]
        storages = [
            tensor.untyped_storage() for tensor in dense if tensor.device.type == "cpu" and not tensor.is_nested
        ]
        claimed = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        if claimed > most_bytes:
            raise StoreError(
                f"{where}: declares {claimed:,} bytes of tensors but holds {most_bytes:,}; damaged or malicious"
            )
    for name, tensor in state.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise StoreError(f"{where}: a tensor has the name {name!r:.60}; names are text of letters, digits and .")
        if fault := _fault(tensor, is_count=name.endswith("num_batches_tracked")):
            raise StoreError(f"{where}: '{name[:100]}' {fault}")


def _fault(tensor: Any, *, is_count: bool) -> str | None:
    """Return what is wrong with a tensor; a count, with which nothing is computed, may be too large for its type."""
    if not isinstance(tensor, torch.Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if tensor.is_quantized:
        return "is quantised; save it in fp32: `coe-experts prepare` makes variants"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"is stored as {str(tensor.layout).removeprefix('torch.')}; save it as a dense tensor"
    if tensor.device.type != "cpu":
        return f"has no values: it is on the device '{tensor.device.type}'"
    if tensor.dtype not in _TAKEN:
        return f"holds {str(tensor.dtype).removeprefix('torch.')}, which is not a type for weights; save it in fp32"
    if _overlaps(tensor):
        return f"declares the shape {tuple(tensor.shape)}, but many values share memory; save it with `contiguous()`"
    if not is_count and not is_finite(tensor):
        return "holds infinite or NaN values; it was badly trained, or is damaged"
    return None


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tell whether two elements of a tensor share memory: then it claims more than its file holds."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _is_archive(path: Path) -> bool:
    """Tell whether torch treats a file as an archive."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _check_archive(path: Path) -> set[str]:
    size, named = path.stat().st_size, set()
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if not_weights := _other_archive({entry.filename.partition("/")[2] for entry in entries[:_MOST_ENTRIES]}):
                raise StoreError(f"{path}: {not_weights}")
            if len(entries) > _MOST_ENTRIES:
                raise StoreError(f"{path}: has {len(entries):,} entries; a file of weights has a few hundred")
            if not any(entry.filename.lower().endswith(".pkl") for entry in entries):
                way = "unpack it, or export its network as ONNX where it was made"
                raise StoreError(f"{path}: an archive, and no weights of torch; {way}")
            if packed := [entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED]:
                name = packed[0].filename[:60]
                raise StoreError(f"{path}: its entry {name!r} is compressed, which torch never does; save it again")
            if (claimed := sum(entry.file_size for entry in entries)) > size:
                raise StoreError(f"{path}: declares {claimed:,} bytes but holds {size:,}; it is damaged or malicious")
            if len({entry.filename.lower() for entry in entries}) < len(entries):
                raise StoreError(f"{path}: has two entries of the same name; it is damaged or malicious")
            for entry in entries:
                if entry.filename.lower().endswith(".pkl"):
                    if entry.file_size > _MOST_PICKLE_BYTES:
                        raise StoreError(f"{path}: {_too_large(entry.file_size)}")
                    named |= _count_steps(path, io.BytesIO(archive.read(entry)))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        again = "copy or download it again, or save it again"
        raise StoreError(f"{path}: cannot be read as a PyTorch file ({_visible_line(error)}); {again}") from error
    return named


def _other_archive(names: set[str]) -> str | None:
    """Say what an archive is, by the names of its entries, if it holds a network as code."""
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        return (
            "a TorchScript archive holds code beside the weights; save the weights alone, "
            "`torch.save(torch.jit.load(FILE).state_dict(), 'weights.pth')`, or export the network as ONNX, and import "
            "that"
        )
    if "archive_format" in names or "models/model.json" in names:
        return "an exported program (torch.export); save the `state_dict()` of its network with torch.save, or use ONNX"
    return None


def _repacked(path: Path) -> io.BytesIO:
    memory = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as copy:
        for entry in archive.infolist():
            copy.writestr(entry.filename, archive.read(entry))
    memory.seek(0)
    return memory


def _check_pickles(path: Path, file: Any) -> set[str]:
    return set().union(*(_count_steps(path, file) for _ in range(_LEGACY_PICKLES)))


def _count_steps(path: Path, file: Any) -> set[str]:
    """Read a pickle's opcodes without executing them; return the names of the classes and functions that it wants."""
    # Raises StoreError for too many opcodes, or for a forbidden call.
    # A tuple counts as often as it is made or used, and with all that it holds: its hash takes so many steps.
    steps, named = 0, set()
    began = file.tell()
    sizes = TupleSizes()
    try:
        for opcode, argument, _ in pickletools.genops(file):
            steps += sizes.take(opcode, argument)
            if opcode.name in ("GLOBAL", "INST"):
                if _MAKERS.fullmatch(str(argument)):
                    raise StoreError(
                        f"{path}: it calls '{argument}', which torch never does for weights; save it again"
                    )
                named.add(_name_now(str(argument)))
            if steps > _MOST_STEPS or file.tell() - began > _MOST_PICKLE_BYTES:
                raise StoreError(f"{path}: {_too_large(file.tell() - began)}")
    except StoreError:
        raise
    except Exception as error:  # of hostile bytes, the reader raises nearly anything
        reason = _visible_line(error)
        raise StoreError(
            f"{path}: cannot be read as a PyTorch file: its pickle is damaged ({reason}); if pickle.dump or another "
            "library wrote it, save it again with torch.save or as safetensors"
        ) from error
    return named


def _name_now(argument: str) -> str:
    """Return the full name of a class or function that a pickle names as Python 2 did, "module name"."""
    module, _, name = argument.partition(" ")
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return f"{module}.{name}"


def _too_large(size: int) -> str:
    return (
        f"its pickle, of {size / 1e6:.1f} MB or more beside the tensors, holds more than names and shapes of "
        "weights; save the network's `state_dict()` alone with torch.save"
    )


def _visible_line(error: BaseException) -> str:
    return "".join(character if character.isprintable() else "?" for character in first_line(error))[:300]


_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}
_FETCH = {"GET", "BINGET", "LONG_BINGET"}
_KEEP = {"PUT", "BINPUT", "LONG_BINPUT"}


class TupleSizes:
    """Follows the steps of one pickle (`pickletools.genops`) by the sizes of what lies on the unpickler's stack.

    A tuple can hold another tuple twice, which holds a third tuple twice, and so on. Forty such steps make a key of a
    dictionary whose hash takes for ever, in a call that no Ctrl-C ends. A smaller key that is used often does the same.
    """

    def __init__(self) -> None:
        self._stack: list[int | None] = []  # None is a mark
        self._memo: dict[int, int] = {}

    def take(self, step: pickletools.OpcodeInfo, argument: Any) -> int:
        """Follow a step; return the number of values in what it makes or fetches, with tuples written out.

        Raises IndexError for an impossible step.
        """
        if step.name == "MARK":
            self._stack.append(None)
            return 1
        if step.name in _FETCH:
            size = self._memo.get(int(argument), 1)
            self._stack.append(size)
            return size
        if step.name in _KEEP or step.name == "MEMOIZE":
            self._memo[len(self._memo) if step.name == "MEMOIZE" else argument] = self._stack[-1] or 1
            return 1
        if step.name == "DUP":
            self._stack.append(self._stack[-1])
            return self._stack[-1] or 1
        members = self._taken(step)
        size = 1 + sum(members) if step.name in _TUPLES else 1
        self._stack.extend(size for _ in step.stack_after)
        return size

    def _taken(self, step: pickletools.OpcodeInfo) -> list[int]:
        """Take from the stack what a step takes; return the sizes."""
        before = list(step.stack_before)
        members: list[int] = []
        if pickletools.markobject in before:
            while (size := self._stack.pop()) is not None:
                members.append(size)
            before = before[: before.index(pickletools.markobject)]
        members += [self._stack.pop() or 1 for _ in before]
        return members
