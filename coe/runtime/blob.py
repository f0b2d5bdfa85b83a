"""An expert's weights as one mapped run of bytes; tensors are views of it and nothing is copied.

The file is mapped privately and its pages are brought in at once, so that a load ends when the disk has been read and
no executor meets a page fault later. Files in the store are replaced by renaming, never changed in place, so a mapping
stays what it was when it was checked.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash

from coe.errors import StoreError

Spec = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""What a skeleton expects: shape and dtype by name."""

# Linux 5.14: bring pages in for reading, without breaking the private mapping into copies.
_MADV_POPULATE_READ = 22
_MAX_HEADER_BYTES = 100 << 20
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Blob:
    """A mapped safetensors file: `tensors` by name, all views of the mapping. It lives as long as a view does."""

    def __init__(self, path: Path, checksum: str | None = None) -> None:
        """Map a file and, with `checksum` (xxh3-128, hexadecimal), prove it whole.

        Raises StoreError if the file is missing, truncated, damaged or not a safetensors file.
        """
        try:
            with path.open("rb") as file:
                self.bytes = os.fstat(file.fileno()).st_size
                if self.bytes < 8:
                    raise StoreError(f"{path.name} has only {self.bytes} bytes (truncated?); import the expert again")
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise StoreError(f"{path.name} cannot be read: {error.strerror or error}") from error
        _populate(mapping)
        if checksum is not None and xxhash.xxh3_128(mapping).hexdigest() != checksum:
            raise StoreError(
                f"{path.name} is damaged (its checksum differs from the manifest); import the expert again"
            )
        self.tensors = _views(mapping, path.name)

    def __repr__(self) -> str:
        return f"<Blob {len(self.tensors)} tensors, {self.bytes:,} bytes>"

    def expect(self, spec: Spec) -> None:
        """Compare with what a skeleton expects; raises StoreError naming the first tensor that does not fit."""
        for name, (shape, dtype) in spec.items():
            tensor = self.tensors.get(name)
            if tensor is None:
                raise StoreError(f"the weights lack '{name}'; they are of another kind")
            if tensor.shape != shape or tensor.dtype != dtype:
                raise StoreError(
                    f"'{name}' is {tuple(tensor.shape)} {tensor.dtype}, not {shape} {dtype}; "
                    f"the weights are of another kind or another number of labels"
                )
        if extra := sorted(set(self.tensors) - set(spec)):
            raise StoreError(f"the weights hold '{extra[0]}', which the kind does not know")


def _populate(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(_MADV_POPULATE_READ)
    except (OSError, ValueError):
        # An older kernel: touch a byte of every page.
        bytes(memoryview(mapping)[:: mmap.PAGESIZE])


def _views(mapping: mmap.mmap, name: str) -> dict[str, torch.Tensor]:
    (size,) = struct.unpack_from("<Q", mapping)
    data_start = 8 + size
    if size > _MAX_HEADER_BYTES or data_start > len(mapping):
        raise StoreError(f"{name} is not a safetensors file, or is truncated; import the expert again")
    try:
        header: dict[str, Any] = json.loads(mapping[8:data_start])
        entries = {key: value for key, value in header.items() if key != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        if data_start + end != len(mapping):
            raise StoreError(f"{name} ends too early or too late (truncated?); import the expert again")
        return {key: _view(mapping, data_start, entry) for key, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StoreError(f"{name} is not a safetensors file ({type(error).__name__} in its header)") from error


def _view(mapping: mmap.mmap, data_start: int, entry: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    count = math.prod(shape)
    if start < 0 or end - start != count * dtype.itemsize:
        raise ValueError("offsets do not fit the shape")
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=data_start + start).view(shape)
