"""The header of a safetensors file, read strictly: every byte of the data belongs to exactly one tensor.

A file with a repeated key, or with tensors that overlap, leave gaps or are not aligned, was not written by safetensors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from coe.errors import StoreError, first_line
from coe.helpers import regular
from coe.helpers.strict_model import parsed_json
from coe.store.blob_format import ALIGNMENT, ITEM_BYTES, Content, Identity, TensorEntry, padded

LENGTH_BYTES = 8
_IDENTITY = "coe"
"""The metadata key under which a file states its identity."""
_METADATA = "__metadata__"
_MAX_BYTES = 100 << 20
_AGAIN = "import the expert again"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The tensors of a file, in the order of the header, and its identity; None if the file does not state it.

    The data begin `start` bytes from the start of the file.
    """

    entries: tuple[TensorEntry, ...]
    identity: Identity | None
    start: int

    @property
    def content(self) -> Content:
        """What lies in a buffer into which the whole file is read, from the offset that aligns its tensors."""
        return Content(self.entries, start=padded(self.start, ALIGNMENT))


def metadata(identity: Identity) -> dict[str, str]:
    """Return the metadata of a file that state its identity."""
    return {_IDENTITY: identity.model_dump_json(exclude_none=True)}


def data_start(first: bytes, file_bytes: int, name: str) -> int:
    """Return where the data of a file begin, from its first 8 bytes and its size; raises StoreError."""
    size = struct.unpack("<Q", first)[0] if len(first) == LENGTH_BYTES else file_bytes
    if size > _MAX_BYTES or LENGTH_BYTES + size > file_bytes:
        raise StoreError(f"{name} is not a safetensors file, or is truncated; {_AGAIN}")
    return LENGTH_BYTES + int(size)


def read(number: int, file_bytes: int, name: str) -> SafetensorsHeader:
    """Read the header of the open file `number`, of `file_bytes` bytes; raises StoreError, OSError."""
    start = data_start(regular.read_at(number, LENGTH_BYTES, 0), file_bytes, name)
    return decode(regular.read_at(number, start - LENGTH_BYTES, LENGTH_BYTES), file_bytes - start, name)


def decode(text: bytes, data_bytes: int, name: str) -> SafetensorsHeader:
    """Read the header `text` of a file with `data_bytes` of data, and prove it sound; raises StoreError."""
    try:
        table = parsed_json(text)
        if not isinstance(table, dict):
            raise ValueError("it is not a table of tensors")
        identity = identity_of(table.pop(_METADATA, None))
        entries = tuple(_entry(key, value) for key, value in table.items())
    except (ValueError, RecursionError) as error:
        reason = _reason(error)
        raise StoreError(f"{name} has a header that makes no sense ({reason}); {_AGAIN}") from None
    _check_places(entries, data_bytes, name)
    return SafetensorsHeader(entries, identity, LENGTH_BYTES + len(text))


def identity_of(metadata: object) -> Identity | None:
    """Return the identity that a file's metadata state, None if they state none; raises ValueError."""
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not text")
    return Identity.model_validate_json(metadata[_IDENTITY]) if _IDENTITY in metadata else None


def _entry(name: str, fields: object) -> TensorEntry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"it must give dtype, shape and data_offsets of {name!r}")
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"shape and offsets of {name!r} are not whole numbers")
    entry = TensorEntry(name=name, dtype=fields["dtype"], shape=tuple(shape), offset=offsets[0])
    if entry.dtype == "Q8" or offsets[1] - offsets[0] != entry.bytes:
        raise ValueError(f"the offsets of {name!r} do not fit its shape")
    if entry.offset % ITEM_BYTES[entry.dtype]:
        raise ValueError(f"{name!r} is not aligned")
    return entry


def _are_counts(numbers: object) -> bool:
    # `type`, because True is an int to Python.
    return isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)


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
    return first_line(error)[:200]
