"""Blobs as files: named by their content, written whole or not at all, checked from end to end."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from coe import regular
from coe.errors import StoreError
from coe.files import replacing
from coe.store.blob_format import CHUNK, PAGE, Header, data_start, decode, digest, encode
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import StoredFile

SUFFIX = ".blob.safetensors"
VERSION_1_SUFFIX = ".blob"
"""The suffix of blobs in format 1, which is no longer read."""


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
        check(folder / stored.file, stored.bytes, stored.digest)
    except (StoreError, OSError):
        return write(folder, blob)
    return stored


def named(header: Header) -> StoredFile:
    """Return the name, the size and the digest of a blob with this header."""
    return _stored(header, encode(header))


def _stored(header: Header, start: bytes) -> StoredFile:
    digest = xxhash.xxh3_128_hexdigest(start)
    return StoredFile(file=f"{header.variant}-{digest}{SUFFIX}", bytes=len(start) + header.data_bytes, digest=digest)


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
