"""The format of a blob: one expert's weights in one variant as one run of bytes, read and checked in one pass.

It is a safetensors file, so that other tools open it too:

    length        8 bytes, little-endian: the size of header and spaces
    header        JSON: the tensors that `shown` returns, and under "__metadata__" a version and the `Header`
    spaces        up to a multiple of 4096 bytes
    data          tensors, each aligned to 64 bytes; chunks of 1 MiB have a checksum each in the header
    zeros         up to a multiple of 4096 bytes, part of the last chunk

All numbers are little-endian. Nothing in a blob is executed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import xxhash
from pydantic import ValidationError

from coe.errors import StoreError
from coe.helpers.preprocessing import Preprocessing
from coe.helpers.strict_model import Bytes, StrictModel

VERSION = "2"
PAGE = 4096
"""Direct reads need offsets and lengths that are multiples of this."""
ALIGNMENT = 64
"""The alignment of every tensor: a cache line, and the widest vector of today's processors."""
CHUNK = 1 << 20
"""Small enough to be hashed while the processor's cache holds it: 15 % over the plain read, not 50 %."""
BLOCK = 128
"""How many weights share a scale in `q8`."""

_BEFORE_METADATA = b'{"__metadata__":'
VERSION_KEY, HEADER_KEY = "coe.blob", "coe.header"
LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 16 << 20
_AGAIN = "prepare the expert again (coe-experts prepare)"
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

Variant = Literal["fp32", "fp16", "q8", "int8"]
MODEL = "coe.onnx"
"""A tensor of each blob in `int8`: the bytes of an ONNX model. The others are weights that the model names."""
Dtype = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "Q8"]
"""The type names of safetensors, and `Q8` for blocks of the quantised part."""


class _HeaderPart(StrictModel, strict=True):
    """A part of a header, in which nothing is taken for something else."""


class Identity(_HeaderPart):
    """The expert that weights were made for: they carry it, so that no other expert runs on them by mistake."""

    id: str
    kind: str
    labels: tuple[str, ...]
    input_size: int
    preprocessing: Preprocessing | None = None


class TensorEntry(_HeaderPart):
    """Where a tensor lies: `offset` bytes from the start of the data.

    `channels_last`: the four axes of `shape` are in the usual order, their bytes lie in the order 0, 2, 3, 1.
    """

    name: str
    dtype: Dtype
    shape: tuple[Bytes, ...]
    offset: Bytes
    channels_last: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in the data; for a quantised tensor, those of whole blocks without their scales."""
        return -(-self.elements // BLOCK) * BLOCK if self.dtype == "Q8" else self.elements * ITEM_BYTES[self.dtype]


def lies_channels_last(shape: tuple[int, ...], floating: bool) -> bool:
    """Tell whether a blob holds a tensor channels-last: it does for weights of convolutions, which then run faster."""
    return len(shape) == 4 and floating


class Quantised(_HeaderPart):
    """The quantised part: `blocks` blocks of int8 from byte `values`, their little-endian fp16 scales from `scales`.

    Every quantised tensor begins a block, so that one kernel dequantises all of them: value * scale.
    """

    values: Bytes
    scales: Bytes
    blocks: Bytes


@dataclass(frozen=True, slots=True)
class Content:
    """What lies in a buffer: the data of `entries`, beginning at byte `start`."""

    entries: tuple[TensorEntry, ...]
    variant: Variant = "fp32"
    folded: tuple[tuple[str, str], ...] = ()
    quantised: Quantised | None = None
    start: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of elements of each entry."""
        return tuple(entry.elements for entry in self.entries)

    @property
    def data_bytes(self) -> int:
        """Where the data end, in bytes from their start."""
        ends = [entry.offset + entry.bytes for entry in self.entries]
        if self.quantised is not None:
            ends.append(self.quantised.scales + 2 * self.quantised.blocks)
        return max(ends, default=0)

    @property
    def optional(self) -> frozenset[str]:
        """What it holds of that which its network may lack."""
        return optional_of(entry.name for entry in self.entries)


class Header(_HeaderPart):
    """What a blob holds. `folded` names (conv, norm) pairs: the batch norm was folded into the convolution before it.

    `identity` comes from the weights that the blob was made from; None if they do not state it. `body` is the digest of
    the blob that holds the other tensors of the expert, "" if there are none. A body itself has 0 `labels` and no
    identity, because several experts share it.
    """

    kind: str
    variant: Variant
    labels: int
    tensors: tuple[TensorEntry, ...]
    folded: tuple[tuple[str, str], ...] = ()
    quantised: Quantised | None = None
    data_bytes: Bytes
    checksums: tuple[str, ...]
    """The xxh3-64 of each chunk of the data, in hexadecimal."""
    identity: Identity | None = None
    body: str = ""

    @property
    def content(self) -> Content:
        """What lies behind the header."""
        return Content(self.tensors, self.variant, self.folded, self.quantised)


def optional_of(names: Iterable[str]) -> frozenset[str]:
    """Return from the names of weights what they hold of that which a network may lack.

    A kind that learns to keep more puts it into a submodule `optional`: weights of before lack it, and their network
    has None instead. So it is with tensors of the network itself that its `may_lack` names.
    """
    held = ("optional" if ".optional." in f".{name}" else name for name in names)
    return frozenset(name for name in held if "." not in name)


def padded(size: int, to: int) -> int:
    """Return a size rounded up to a multiple of `to`."""
    return -(-size // to) * to


def digest(*pieces: bytes | bytearray | memoryview) -> str:
    """Return the checksum of a chunk, given in pieces; it guards against damage, not against an attacker."""
    checksum = xxhash.xxh3_64()
    for piece in pieces:
        checksum.update(piece)
    return checksum.hexdigest()


def data_start(prefix: bytes, name: str) -> int:
    """Return how many bytes come before the data, from the first `PAGE` bytes of a blob; raises StoreError."""
    start = LENGTH.size + LENGTH.unpack_from(prefix)[0] if len(prefix) >= PAGE else 0
    if start % PAGE or not PAGE <= start <= _MAX_HEADER_BYTES:
        raise StoreError(f"{name} is not a blob, or is truncated; {_AGAIN}")
    return int(start)


def decode(start: bytes, name: str) -> Header:
    """Read the bytes before the data, and prove the header sound; raises StoreError."""
    if len(start) < data_start(start[:PAGE], name):
        raise StoreError(f"{name} is truncated; {_AGAIN}")
    try:
        # The metadata come first, and only they are parsed: parsing the tensors too would take twice as long.
        metadata, _ = json.JSONDecoder().raw_decode(start[LENGTH.size + len(_BEFORE_METADATA) :].decode())
        version, text = metadata[VERSION_KEY], metadata[HEADER_KEY]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise StoreError(f"{name} has a damaged header; {_AGAIN}") from None
    if version != VERSION:
        raise StoreError(f"{name} is a blob of version {str(version)[:20]}, not {VERSION}; {_AGAIN}")
    try:
        header = Header.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{name} has a header that makes no sense ({error.errors()[0]['msg']}); {_AGAIN}") from None
    _check(header, name)
    return header


def _check(header: Header, name: str) -> None:
    """Prove that all tensors lie inside the data, so that no view reaches beyond its end."""
    wrong = f"{name} has a header that makes no sense"
    if header.data_bytes % PAGE or len(header.checksums) != -(-header.data_bytes // CHUNK):
        raise StoreError(f"{wrong}: {len(header.checksums)} checksums for {header.data_bytes:,} bytes")
    parts = header.quantised
    if parts and max(parts.values + parts.blocks * BLOCK, parts.scales + 2 * parts.blocks) > header.data_bytes:
        raise StoreError(f"{wrong}: its quantised part ends beyond the data")
    for tensor in header.tensors:
        end = tensor.offset + tensor.bytes
        if tensor.dtype == "Q8":
            if parts is None or tensor.offset < parts.values or end > parts.values + parts.blocks * BLOCK:
                raise StoreError(f"{wrong}: '{tensor.name}' lies outside the quantised part")
            if (tensor.offset - parts.values) % BLOCK:
                raise StoreError(f"{wrong}: '{tensor.name}' does not begin a block")
        elif end > header.data_bytes or tensor.offset % ALIGNMENT:
            raise StoreError(f"{wrong}: '{tensor.name}' lies outside the data, or is not aligned")
        if tensor.channels_last and len(tensor.shape) != 4:
            raise StoreError(f"{wrong}: '{tensor.name}' has {len(tensor.shape)} axes and cannot be channels-last")
    places = [(tensor.offset, tensor.offset + tensor.bytes) for tensor in header.tensors if tensor.bytes]
    if parts:
        places.append((parts.scales, parts.scales + 2 * parts.blocks))
    places.sort()
    if any(end > start for (_, end), (start, _) in pairwise(places)):
        raise StoreError(f"{wrong}: two of its tensors share bytes")
    types = {tensor.name: tensor.dtype for tensor in header.tensors}
    if header.variant == "int8" and (types.pop(MODEL, None) != "U8" or {*types.values()} - {"I8"}):
        raise StoreError(f"{wrong}: it does not hold a model, and beside it weights in int8 alone")
