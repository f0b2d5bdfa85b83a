"""The format of a blob: one expert's weights in one variant as one run of bytes, read in one go and checked on the way.

    prefix        magic, version, length and xxh3-64 of the header
    header        JSON: `Header`
    zeros         up to a multiple of 4096 bytes
    data          tensors, each aligned to 64 bytes; chunks of 1 MiB have a checksum each in the header
    zeros         up to a multiple of 4096 bytes, part of the last chunk

All numbers are little-endian. Nothing in a blob is executed.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import Annotated, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coe.errors import StoreError

MAGIC = b"CoE-blob"
VERSION = 1
PAGE = 4096
"""What direct reads ask of offsets and lengths."""
ALIGNMENT = 64
"""Of every tensor: a cache line, and the widest vector of today's processors."""
CHUNK = 1 << 20
"""Small enough to be hashed while the processor's own cache holds it: 15 % over the plain read, not 50 %."""
BLOCK = 128
"""Weights that share a scale in `q8`."""

_PREFIX = struct.Struct("<8sIIQ")
_MAX_HEADER_BYTES = 16 << 20
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

Variant = Literal["fp32", "bf16", "fp16", "q8"]
Dtype = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "Q8"]
"""As safetensors writes them; `Q8` are blocks of the quantised part."""
Bytes = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Identity(_Part):
    """For which expert weights were made: they carry it, so that no other expert runs on them by mistake."""

    id: str
    kind: str
    labels: tuple[str, ...]
    input_size: int


class TensorEntry(_Part):
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
        """Bytes in the data; of a quantised tensor whole blocks, without their scales."""
        return -(-self.elements // BLOCK) * BLOCK if self.dtype == "Q8" else self.elements * ITEM_BYTES[self.dtype]


def lies_channels_last(shape: tuple[int, ...], floating: bool) -> bool:
    """Tell whether a blob holds a tensor channels-last: the weights of convolutions, which run faster so."""
    return len(shape) == 4 and floating


class Quantised(_Part):
    """The quantised part: `blocks` of int8 at `values`, a little-endian fp16 scale each at `scales`.

    Every quantised tensor begins a block, so that one kernel dequantises all of them: value * scale.
    """

    values: Bytes
    scales: Bytes
    blocks: Bytes


class Header(_Part):
    """What a blob holds. `folded` names convolutions that took in the batch norm which followed them, (conv, norm).

    `identity` is that of the weights which it was made from; None where those do not say whose they are.
    """

    kind: str
    variant: Variant
    labels: int
    tensors: tuple[TensorEntry, ...]
    folded: tuple[tuple[str, str], ...] = ()
    quantised: Quantised | None = None
    data_bytes: Bytes
    checksums: tuple[str, ...]
    """Of each chunk of the data, xxh3-64 in hexadecimal."""
    identity: Identity | None = None


def padded(size: int, to: int) -> int:
    """Return a size rounded up to a multiple."""
    return -(-size // to) * to


def digest(chunk: bytes | bytearray | memoryview) -> str:
    """Return the checksum of a chunk; it guards against damage, not against an attacker."""
    return xxhash.xxh3_64_hexdigest(chunk)


def encode(header: Header) -> bytes:
    """Return prefix, header and zeros: what comes before the data."""
    text = header.model_dump_json().encode()
    start = _PREFIX.pack(MAGIC, VERSION, len(text), xxhash.xxh3_64_intdigest(text)) + text
    return start.ljust(padded(len(start), PAGE), b"\0")


def data_start(prefix: bytes, name: str) -> int:
    """Return how many bytes come before the data, from the first `PAGE` bytes of a blob; raises StoreError."""
    again = "prepare the expert again (coe-experts prepare)"
    if len(prefix) < PAGE or prefix[:8] != MAGIC:
        raise StoreError(f"{name} is not a blob, or is truncated; {again}")
    _, version, size, _ = _PREFIX.unpack_from(prefix)
    if version != VERSION:
        raise StoreError(f"{name} is a blob of version {version}, not {VERSION}; {again}")
    if size > _MAX_HEADER_BYTES:
        raise StoreError(f"{name} has a damaged header; {again}")
    return padded(_PREFIX.size + size, PAGE)


def decode(start: bytes, name: str) -> Header:
    """Read all that comes before the data, and prove it sound; raises StoreError."""
    again = "prepare the expert again (coe-experts prepare)"
    if len(start) < data_start(start[:PAGE], name):
        raise StoreError(f"{name} is truncated; {again}")
    _, _, size, checksum = _PREFIX.unpack_from(start)
    text = start[_PREFIX.size : _PREFIX.size + size]
    if xxhash.xxh3_64_intdigest(text) != checksum:
        raise StoreError(f"{name} has a damaged header (its checksum differs); {again}")
    try:
        header = Header.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{name} has a header that makes no sense ({error.errors()[0]['msg']}); {again}") from None
    _check(header, name)
    return header


def _check(header: Header, name: str) -> None:
    """Prove that all tensors lie in the data, so that nobody looks beyond its end."""
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
            raise StoreError(f"{wrong}: '{tensor.name}' lies outside the data, or across a line of the cache")
        if tensor.channels_last and len(tensor.shape) != 4:
            raise StoreError(f"{wrong}: '{tensor.name}' has {len(tensor.shape)} axes and cannot be channels-last")
    places = [(tensor.offset, tensor.offset + tensor.bytes) for tensor in header.tensors if tensor.bytes]
    if parts:
        places.append((parts.scales, parts.scales + 2 * parts.blocks))
    places.sort()
    if any(end > start for (_, end), (start, _) in pairwise(places)):
        raise StoreError(f"{wrong}: two of its tensors share bytes")
