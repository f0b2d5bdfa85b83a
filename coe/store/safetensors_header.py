"""The header of a safetensors file, read strictly: every byte of the data belongs to one tensor, and to one alone.

A file that says anything twice, or whose tensors overlap, leave gaps or lie askew, was not written by safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from coe import regular
from coe.errors import StoreError
from coe.store.blob_format import ITEM_BYTES, Identity, TensorEntry

LENGTH_BYTES = 8
_IDENTITY = "coe"
"""The key of the metadata under which a file says whose it is."""
_METADATA = "__metadata__"
_MAX_BYTES = 100 << 20
_AGAIN = "import the expert again"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The tensors of a file, in the order of the header, and for whom it was made; None where it does not say so."""

    entries: tuple[TensorEntry, ...]
    identity: Identity | None


def metadata(identity: Identity) -> dict[str, str]:
    """Return what is written into a file to say whose it is."""
    return {_IDENTITY: identity.model_dump_json()}


def data_start(first: bytes, file_bytes: int, name: str) -> int:
    """Return where the data of a file begin, from its first 8 bytes and its size; raises StoreError."""
    size = struct.unpack("<Q", first)[0] if len(first) == LENGTH_BYTES else file_bytes
    if size > _MAX_BYTES or LENGTH_BYTES + size > file_bytes:
        raise StoreError(f"{name} is not a safetensors file, or is truncated; {_AGAIN}")
    return LENGTH_BYTES + int(size)


def read(number: int, file_bytes: int, name: str) -> SafetensorsHeader:
    """Read the header of an open file of that size; raises StoreError, OSError."""
    start = data_start(regular.read_at(number, LENGTH_BYTES, 0), file_bytes, name)
    return decode(regular.read_at(number, start - LENGTH_BYTES, LENGTH_BYTES), file_bytes - start, name)


def decode(text: bytes, data_bytes: int, name: str) -> SafetensorsHeader:
    """Read a header, `text`, before `data_bytes` of data, and prove it sound; raises StoreError."""
    try:
        said = json.loads(text, object_pairs_hook=_once)
        if not isinstance(said, dict):
            raise ValueError("it is not a table of tensors")
        identity = _identity(said.pop(_METADATA, None))
        entries = tuple(_entry(key, value) for key, value in said.items())
    except (ValueError, RecursionError) as error:
        reason = _reason(error)
        raise StoreError(f"{name} has a header that makes no sense ({reason}); {_AGAIN}") from None
    _check_places(entries, data_bytes, name)
    return SafetensorsHeader(entries, identity)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it says something twice")
    return found


def _identity(said: object) -> Identity | None:
    if said is None:
        return None
    if not isinstance(said, Mapping) or not all(isinstance(value, str) for value in said.values()):
        raise ValueError("its metadata are not words")
    return Identity.model_validate_json(said[_IDENTITY]) if _IDENTITY in said else None


def _entry(name: str, said: object) -> TensorEntry:
    if not isinstance(said, dict) or set(said) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"of {name!r} it must give dtype, shape and data_offsets")
    shape, offsets = said["shape"], said["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"shape and offsets of {name!r} are not whole numbers")
    entry = TensorEntry(name=name, dtype=said["dtype"], shape=tuple(shape), offset=offsets[0])
    if entry.dtype == "Q8" or offsets[1] - offsets[0] != entry.bytes:
        raise ValueError(f"the offsets of {name!r} do not fit its shape")
    if entry.offset % ITEM_BYTES[entry.dtype]:
        raise ValueError(f"{name!r} lies askew")
    return entry


def _are_counts(said: object) -> bool:
    # True is an int to Python.
    return isinstance(said, list) and all(type(number) is int and number >= 0 for number in said)


def _check_places(entries: tuple[TensorEntry, ...], data_bytes: int, name: str) -> None:
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.bytes)):
        if entry.offset != end:
            where = "overlaps another tensor" if entry.offset < end else "leaves a gap before it"
            raise StoreError(f"{name} has a header that makes no sense ({entry.name!r} {where}); {_AGAIN}")
        end += entry.bytes
    if end != data_bytes:
        raise StoreError(f"{name} ends too early or too late (truncated?); {_AGAIN}")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"]
    return str(error).splitlines()[0][:200]
