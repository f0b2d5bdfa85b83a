"""Files of trained weights and of blobs, checked from end to end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import xxhash

from coe.errors import StoreError, first_line
from coe.helpers import regular
from coe.store import safetensors_header
from coe.store.blob_format import CHUNK, PAGE, Header, TensorEntry, data_start, decode, digest
from coe.store.manifest import Manifest, StoredFile
from coe.store.safetensors_header import SafetensorsHeader

SUFFIX = ".safetensors"
BLOB_SUFFIX = ".blob.safetensors"
_MOST_HEADERS = 4096


class Headers:
    """Headers that were decoded and proved sound, by the digest of their bytes: a line decodes no header twice.

    Experts of one kind and variant have equal tensors, which are kept once.
    """

    def __init__(self) -> None:
        self._blobs: dict[str, Header] = {}
        self._trained: dict[tuple[str, int], SafetensorsHeader] = {}
        self._tensors: dict[tuple[TensorEntry, ...], tuple[TensorEntry, ...]] = {}

    def of_blob(self, start: bytes, digest: str, name: str) -> Header:
        """Return the header of a blob from the bytes before its data, and their xxh3-128; raises StoreError."""
        if (header := self._blobs.get(digest)) is None:
            header = decode(start, name)
            self._make_room()
            tensors = self._tensors.setdefault(header.tensors, header.tensors)
            header = self._blobs[digest] = header.model_copy(update={"tensors": tensors})
        return header

    def of_trained(self, text: bytes, data_bytes: int, name: str) -> SafetensorsHeader:
        """Return the header of weights as they were trained, see `safetensors_header.decode`; raises StoreError."""
        key = xxhash.xxh3_128_hexdigest(text), data_bytes
        if (header := self._trained.get(key)) is None:
            header = safetensors_header.decode(text, data_bytes, name)
            self._make_room()
            entries = self._tensors.setdefault(header.entries, header.entries)
            header = self._trained[key] = replace(header, entries=entries)
        return header

    def _make_room(self) -> None:
        # A service that brings ever new experts must not grow for ever.
        if len(self._blobs) + len(self._trained) >= _MOST_HEADERS:
            for kept in (self._blobs, self._trained, self._tensors):
                kept.clear()


def checksum(path: Path) -> str:
    """Return the xxh3-128 of a file, in hexadecimal; it guards against damage, not against an attacker.

    Raises OSError, also if it is not a regular file.
    """
    with regular.opened(path) as number:
        return _checksum(number)


def if_gone(path: Path) -> str:
    """Say what to do about a file of an expert that is not there."""
    is_blob = path.name.endswith(BLOB_SUFFIX)
    again = "prepare the expert again (coe-experts prepare)" if is_blob else "train or import the expert again"
    return f"copy it back from a backup of the store, or {again}"


def check_body(path: Path, body: StoredFile, name: str) -> None:
    """Read the body of an expert's trained tensors from end to end and prove it; raises StoreError, OSError."""
    with regular.opened(path) as number:
        if os.fstat(number).st_size != body.bytes or _checksum(number) != body.digest:
            raise StoreError(f"{name} is damaged (its size or checksum differs); train or import the expert again")


def check(path: Path, manifest: Manifest) -> None:
    """Read a file from end to end and prove that it is the file of a manifest; raises StoreError, OSError."""
    name = f"{manifest.id}: {path.name}"
    with regular.opened(path) as number:
        size = os.fstat(number).st_size
        if size != manifest.bytes:
            raise StoreError(f"{name} has {size:,} bytes, not {manifest.bytes:,} (truncated?); import it again")
        if _checksum(number) != manifest.checksum:
            raise StoreError(f"{name} is damaged (its checksum differs); import it again")
        if path.suffix == SUFFIX:
            manifest.prove(safetensors_header.read(number, size, name).identity, name)


def check_blob(path: Path, size: int, start_digest: str, into: bytearray | None = None) -> Header:
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


def header(path: Path) -> SafetensorsHeader:
    """Return the tensors of a safetensors file and the identity that it states; raises StoreError, OSError."""
    with regular.opened(path) as number:
        return safetensors_header.read(number, os.fstat(number).st_size, path.name)


def holds(path: Path, data: bytes) -> bool:
    """Tell whether a file now holds exactly these bytes."""
    try:
        return checksum(path) == xxhash.xxh3_128_hexdigest(data)
    except OSError:
        return False


def reason(error: BaseException) -> str:
    """Return why a file cannot be read or written, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


def _checksum(number: int) -> str:
    digest = xxhash.xxh3_128()
    for chunk in regular.chunks(number):
        digest.update(chunk)
    return digest.hexdigest()
