"""Weights from files into buffers: read once, in order, each chunk proved while the processor's cache still holds it.

Files are read, not mapped: reading a truncated file, or a failing disk, raises an error here; a mapping would kill the
whole process (SIGBUS) in the middle of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from coe.core import Expert
from coe.errors import StoreError, readable
from coe.helpers import regular
from coe.runtime.blob import Blob, Buffers, M, MemoryLender, Structure
from coe.store import blob_format, safetensors_header, weights_file
from coe.store.blob_format import ALIGNMENT, CHUNK, PAGE, Content, Header
from coe.store.manifest import Manifest, PreparedVariant, StoredFile
from coe.store.safetensors_header import LENGTH_BYTES
from coe.store.store_reader import StoreReader
from coe.store.weights_file import Headers

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Weights:
    """A file that an expert runs from, with its manifest; `name` is for messages."""

    path: Path
    name: str
    expert: Expert
    manifest: Manifest
    prepared: PreparedVariant | None
    """None: the file holds the weights as they were trained, as safetensors."""
    headers: Headers
    """Those that the store has decoded so far."""
    file: StoredFile | None = None
    """None: the file is the expert's own; else it is that of its body."""
    body: Weights | None = None
    """The file of the expert's body, if it has one."""

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return (self.file or self.prepared or self.manifest).bytes

    @property
    def whole_bytes(self) -> int:
        """Size of the file and of that of the body."""
        return self.bytes + (self.body.bytes if self.body is not None else 0)

    @property
    def digest(self) -> str:
        """The digest of the file: of a blob that of the bytes before its data, else that of all bytes."""
        own = self.prepared.digest if self.prepared else self.manifest.checksum
        return self.file.digest if self.file is not None else own

    def read(self, buffers: Buffers, body: Blob | None = None) -> Blob:
        """Read the file into a buffer and prove it; raises StoreError if it differs from the manifest.

        The blob of an expert that has a body runs with that, which is read first.
        """
        buffer, content = self.content(buffers)
        try:
            return Blob(buffer, content, buffers, body)
        except BaseException:
            buffers.give(buffer)
            raise

    def content(self, buffers: MemoryLender[M]) -> tuple[M, Content]:
        """Read and prove the file as `read` does; return the buffer, and what lies in it."""
        with _opened(self) as file:
            if self.prepared:
                return _read_blob(file, self, buffers)
            return _read_safetensors(file, self, buffers)

    def structure(self) -> Structure:
        """Return the structure of the skeleton that runs the expert, from headers alone; raises StoreError."""
        content = self.outline()
        common = self.body.outline().optional if self.body is not None else frozenset()
        return Structure(folded=content.folded, optional=content.optional | common)

    def outline(self) -> Content:
        """Return what lies in the file, from its header alone; raises StoreError."""
        with _opened(self) as file:
            if self.prepared:
                return _header(_head(file, self), self).content
            start = safetensors_header.data_start(_length(file), self.bytes, self.name)
            text = regular.read_at(file, start - LENGTH_BYTES, LENGTH_BYTES)
            return self.headers.of_trained(text, self.bytes - start, self.name).content


def weights(store: StoreReader, expert: Expert) -> Weights:
    """Find the file of an expert in its variant; raises StoreError if the expert is not prepared in that variant.

    In fp32, an expert that was not prepared runs from the weights as they were trained.
    """
    manifest = store.manifest(expert.weights)
    prepared = next((blob for variant, blob in manifest.variants.items() if variant == expert.variant), None)
    if prepared is None and expert.variant != "fp32":
        have = ", ".join(sorted({"fp32", *manifest.variants}))
        raise StoreError(
            f"'{expert.weights}' has not been prepared in {expert.variant} (available: {have}); "
            f"run `coe-experts prepare {expert.weights}`"
        )
    file = prepared.file if prepared else manifest.file
    path = store.folder(expert.weights) / file
    common = (prepared or manifest).body
    body = None
    if common is not None:
        name = f"the body {common.file} of '{expert.weights}'"
        body = Weights(store.bodies / common.file, name, expert, manifest, prepared, store.headers, common)
    return Weights(path, f"{expert.weights}/{file}", expert, manifest, prepared, store.headers, body=body)


def proved(weights: Weights) -> bytes:
    """Return the bytes of a weights file; raises StoreError if they differ from the manifest."""
    with _opened(weights) as file:
        _check_size(file, weights, weights.bytes, _IMPORT)
        with os.fdopen(file, "rb", closefd=False) as reader:
            data = reader.read(weights.bytes)
    if xxhash.xxh3_128_hexdigest(data) != weights.manifest.checksum:
        raise StoreError(f"{weights.name} is damaged (its checksum differs from the manifest); {_IMPORT}")
    return data


@contextmanager
def _opened(weights: Weights) -> Iterator[int]:
    """Open the file and give its descriptor, which stays the same file whatever is renamed into its place meanwhile."""
    with readable(weights.name, StoreError, weights_file.if_gone(weights.path)), regular.opened(weights.path) as file:
        yield file


def _fill(file: int, pieces: Sequence[memoryview], offset: int, name: str) -> None:
    for piece in pieces:
        done = 0
        while done < len(piece):
            with piece[done:] as rest:
                size = regular.read_into(file, rest, offset + done)
            if not size:
                raise StoreError(f"{name} ended at {offset + done:,} bytes while it was read (truncated?)")
            done += size
        offset += done


def _check_size(file: int, weights: Weights, expected: int, remedy: str) -> None:
    size = os.fstat(file).st_size
    if size != expected:
        raise StoreError(f"{weights.name} has {size:,} bytes, not {expected:,} (truncated?); {remedy}")


# Blobs

_AGAIN = "prepare the expert again (coe-experts prepare)"


def _head(file: int, weights: Weights) -> bytes:
    """Return the bytes before the data."""
    start = regular.read_at(file, _HEAD_BYTES, 0)
    end = blob_format.data_start(start[:PAGE], weights.name)
    if len(start) < end:
        start += regular.read_at(file, end - len(start), len(start))
    return start[:end]


def _header(head: bytes, weights: Weights) -> Header:
    digest = xxhash.xxh3_128_hexdigest(head)
    header = weights.headers.of_blob(head, digest, weights.name)
    if digest != weights.digest:
        raise StoreError(f"{weights.name} is not the blob that the manifest names (another header); {_AGAIN}")
    expert = weights.expert
    weights.manifest.prove_blob(
        header,
        weights.name,
        kind=expert.kind,
        variant=expert.variant,
        labels=len(expert.labels) if weights.file is None else 0,  # experts of several numbers of labels share a body
        body=weights.body.digest if weights.body is not None else "",
    )
    return header


def _read_blob(file: int, weights: Weights, buffers: MemoryLender[M]) -> tuple[M, Content]:
    head = _head(file, weights)
    header = _header(head, weights)
    _check_size(file, weights, len(head) + header.data_bytes, _AGAIN)
    with _lent(buffers, header.data_bytes) as buffer:
        for number, checksum in enumerate(header.checksums):
            at = number * CHUNK
            with buffer.part(at, min(at + CHUNK, header.data_bytes)) as chunk:
                _fill(file, chunk, len(head) + at, weights.name)
                if blob_format.digest(*chunk) != checksum:
                    raise StoreError(
                        f"{weights.name} is damaged in chunk {number + 1} of {len(header.checksums)} "
                        f"(its checksum differs); {_AGAIN}"
                    )
    return buffer, header.content


@contextmanager
def _lent(buffers: MemoryLender[M], size: int) -> Iterator[M]:
    """Lend a buffer to fill; it goes back at once if filling it fails."""
    buffer = buffers.take(size)
    try:
        yield buffer
    except BaseException:
        buffers.give(buffer)
        raise


# Weights as they were trained

_IMPORT = "import the expert again"


def _read_safetensors(file: int, weights: Weights, buffers: MemoryLender[M]) -> tuple[M, Content]:
    name, size = weights.name, weights.bytes
    _check_size(file, weights, size, _IMPORT)
    start = safetensors_header.data_start(_length(file), size, name)
    first = -start % ALIGNMENT  # see `SafetensorsHeader.content`
    with _lent(buffers, first + size) as buffer:
        checksum = xxhash.xxh3_128()
        for at in range(0, size, CHUNK):
            with buffer.part(first + at, first + min(at + CHUNK, size)) as chunk:
                _fill(file, chunk, at, name)
                for piece in chunk:
                    checksum.update(piece)
        if checksum.hexdigest() != weights.digest:
            raise StoreError(f"{name} is damaged (its checksum differs from the manifest); {_IMPORT}")
        with buffer.part(first + LENGTH_BYTES, first + start) as head:
            header = weights.headers.of_trained(b"".join(head), size - start, name)
        weights.manifest.prove(header.identity, name)
    return buffer, header.content


def _length(file: int) -> bytes:
    return regular.read_at(file, LENGTH_BYTES, 0)
