"""Blobs as files, checked from end to end."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from coe import regular
from coe.errors import StoreError
from coe.store.blob_format import CHUNK, PAGE, Header, data_start, decode, digest

SUFFIX = ".blob.safetensors"
VERSION_1_SUFFIX = ".blob"
"""The suffix of blobs in format 1, which is no longer read."""


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
