"""Blobs as files: named by their content, written whole or not at all, checked from end to end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from coe import regular
from coe.errors import StoreError
from coe.files import replacing
from coe.store.blob_format import CHUNK, PAGE, Header, data_start, decode, digest, encode
from coe.store.blob_layout import BlobBytes

SUFFIX = ".blob.safetensors"
VERSION_1_SUFFIX = ".blob"
"""The suffix of blobs in format 1, which is no longer read."""


@dataclass(frozen=True, slots=True)
class WrittenBlob:
    """A blob on the disk: its file's name, its size, and the xxh3-128 of the bytes before its data."""

    file: str
    bytes: int
    digest: str


def write(folder: Path, header: Header, data: Iterable[memoryview]) -> WrittenBlob:
    """Write a blob into a folder; raises OSError, and then leaves no file behind.

    Its name depends on its content (the header holds the checksums of the data), so two blobs of one name are equal.
    """
    start = encode(header)
    blob = named(header, start)
    with replacing(folder / blob.file) as file:
        file.write(start)
        file.writelines(data)
    return blob


def write_once(folder: Path, header: Header, data: Iterable[memoryview]) -> WrittenBlob:
    """Write a blob as `write` does, unless it is in the folder already, undamaged."""
    blob = named(header)
    try:
        check(folder / blob.file, blob.bytes, blob.digest)
    except (StoreError, OSError):
        return write(folder, header, data)
    return blob


def named(header: Header, start: bytes = b"") -> WrittenBlob:
    """Return the name, size and digest of a blob with this header; `start`, if it is known, is what `encode` makes."""
    start = start or encode(header)
    start_digest = xxhash.xxh3_128_hexdigest(start)
    return WrittenBlob(f"{header.variant}-{start_digest}{SUFFIX}", len(start) + header.data_bytes, start_digest)


def read(path: Path, size: int, start_digest: str) -> BlobBytes:
    """Read a blob into memory and prove it as `check` does; raises StoreError, OSError."""
    data = bytearray()
    header = check(path, size, start_digest, data)
    return BlobBytes(header, memoryview(data))


def check(path: Path, size: int, start_digest: str, into: bytearray | None = None) -> Header:
    """Read a blob from end to end and prove its size and digest; its data are added to `into`.

    Raises StoreError, OSError.
    """
    again = "prepare the expert again (coe-experts prepare)"
    with regular.opened(path) as opened, os.fdopen(opened, "rb", closefd=False) as file:
        actual = os.fstat(opened).st_size
        if actual != size:
            raise StoreError(f"{path.name} has {actual:,} bytes, not {size:,} (truncated?); {again}")
        start = file.read(PAGE)
        start += file.read(data_start(start, path.name) - len(start))
        header = decode(start, path.name)
        if xxhash.xxh3_128_hexdigest(start) != start_digest:
            raise StoreError(f"{path.name} is not the blob that the manifest names (its digest differs); {again}")
        if len(start) + header.data_bytes != size:
            raise StoreError(f"{path.name} has {size:,} bytes, but its header states another size; {again}")
        for number, checksum in enumerate(header.checksums):
            if digest(chunk := file.read(CHUNK)) != checksum:
                raise StoreError(f"{path.name} is damaged (the checksum of chunk {number} differs); {again}")
            if into is not None:
                into += chunk
    return header
