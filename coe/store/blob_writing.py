"""Blobs in memory as files: named by their content, and written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import xxhash

from coe.errors import StoreError
from coe.helpers.files import replacing
from coe.store.blob_format import BLOCK, HEADER_KEY, LENGTH, PAGE, VERSION, VERSION_KEY, Header, TensorEntry, padded
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import StoredFile
from coe.store.weights_file import BLOB_SUFFIX, check_blob


def write(folder: Path, blob: BlobBytes) -> StoredFile:
    """Write a blob into a folder; raises OSError, and then leaves no file behind.

    Its name depends on its content (the header holds the checksums of the data), so two blobs of one name are equal.
    """
    start = encode(blob.header)
    stored = _stored(blob.header, start)
    with replacing(folder / stored.file) as file:
        file.write(start)
        file.writelines(blob.chunks())
    return stored


def write_once(folder: Path, blob: BlobBytes) -> StoredFile:
    """Write a blob as `write` does, unless it is in the folder already, undamaged."""
    stored = named(blob.header)
    try:
        check_blob(folder / stored.file, stored.bytes, stored.digest)
    except (StoreError, OSError):
        return write(folder, blob)
    return stored


def named(header: Header) -> StoredFile:
    """Return the name, the size and the digest of a blob with this header."""
    return _stored(header, encode(header))


def _stored(header: Header, start: bytes) -> StoredFile:
    digest = xxhash.xxh3_128_hexdigest(start)
    return StoredFile(
        file=f"{header.variant}-{digest}{BLOB_SUFFIX}", bytes=len(start) + header.data_bytes, digest=digest
    )


def read(path: Path, size: int, start_digest: str) -> BlobBytes:
    """Read a blob into memory and prove it as `check` does; raises StoreError, OSError."""
    data = bytearray()
    header = check_blob(path, size, start_digest, data)
    return BlobBytes(header, memoryview(data))


def encode(header: Header) -> bytes:
    """Return the bytes before the data: length, header and spaces."""
    content = {
        "__metadata__": {VERSION_KEY: VERSION, HEADER_KEY: header.model_dump_json(exclude_defaults=True)},
        **shown(header),
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    length = padded(LENGTH.size + len(text), PAGE) - LENGTH.size
    return LENGTH.pack(length) + text.ljust(length)


def shown(header: Header) -> dict[str, dict[str, object]]:
    """Return the tensors of a blob in the form of safetensors, where every byte of the data belongs to one tensor.

    A channels-last tensor has its axes in the order of its bytes; a quantised tensor is blocks of int8. The scales, and
    the zeros between tensors, are additional tensors (`coe.*`).
    """
    places = [
        (entry.offset, entry.offset + entry.bytes, entry.name, _dtype(entry), _shape(entry)) for entry in header.tensors
    ]
    if parts := header.quantised:
        end = parts.scales + 2 * parts.blocks
        places.append((parts.scales, end, "coe.scales", "F16", [parts.blocks]))
    tensors: dict[str, dict[str, object]] = {}

    def show(name: str, dtype: str, shape: list[int], start: int, end: int) -> None:
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}

    filled = 0
    for start, end, name, dtype, shape in sorted(places):
        if start > filled:
            show(f"coe.zeros.{filled}", "U8", [start - filled], filled, start)
        show(name, dtype, shape, start, end)
        filled = end
    if header.data_bytes > filled:
        show(f"coe.zeros.{filled}", "U8", [header.data_bytes - filled], filled, header.data_bytes)
    return tensors


def _dtype(tensor: TensorEntry) -> str:
    return "I8" if tensor.dtype == "Q8" else tensor.dtype


def _shape(tensor: TensorEntry) -> list[int]:
    if tensor.dtype == "Q8":
        return [tensor.bytes // BLOCK, BLOCK]
    return [tensor.shape[axis] for axis in ((0, 2, 3, 1) if tensor.channels_last else range(len(tensor.shape)))]
