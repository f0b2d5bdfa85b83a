"""Blobs in memory as files: named by their content, and written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import xxhash

from coe.errors import StoreError
from coe.files import replacing
from coe.store.blob_file import SUFFIX, check
from coe.store.blob_format import Header, encode
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import StoredFile


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
