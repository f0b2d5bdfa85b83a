"""Weights from files into buffers: read once, in order, each chunk proved while the processor's cache still holds it.

Files are read, not mapped: a file that is cut short, or a disk that fails, is an error here, where a mapping would end
the whole process (SIGBUS) in the middle of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from coe import regular
from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.blob import PLAIN, Blob, Content, Structure, converted, structure_of
from coe.runtime.buffers import Buffers, Lender, M
from coe.store import blob_format, safetensors_header
from coe.store.blob_format import ALIGNMENT, CHUNK, PAGE, Header
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.store import Store

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Needs:
    """A skeleton of that structure, and so many bytes for numbers that are converted when a slot takes the expert."""

    structure: Structure
    converted_bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """The file that an expert runs from, and what the manifest says of it; `name` is for messages."""

    path: Path
    name: str
    expert: Expert
    manifest: Manifest
    prepared: PreparedVariant | None
    """None: the weights as they were trained, a safetensors file."""

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.prepared.bytes if self.prepared else self.manifest.bytes

    def read(self, buffers: Buffers) -> Blob:
        """Read the file into a buffer and prove it; raises StoreError where it is not what the manifest says."""
        buffer, content = self.content(buffers)
        try:
            return Blob(buffer, content, buffers)
        except BaseException:
            buffers.give(buffer)
            raise

    def content(self, buffers: Lender[M]) -> tuple[M, Content]:
        """Do what `read` does; return the buffer, and what lies in it."""
        with _opened(self) as file:
            if self.prepared:
                return _read_blob(file, self, self.prepared, buffers)
            return _read_safetensors(file, self, buffers)

    def needs(self) -> Needs:
        """Tell what it takes to run the file, from its header alone; raises StoreError."""
        if self.prepared is None:
            return Needs(PLAIN, 0)
        found = self.outline()
        structure = structure_of(found.variant, found.folded)
        return Needs(structure, structure.dtype.itemsize * converted(found.entries, found.quantised, structure.dtype))

    def outline(self) -> Content:
        """Tell what lies in the file, from its header alone; raises StoreError."""
        with _opened(self) as file:
            if self.prepared:
                return _content(_header(_head(file, self), self, self.prepared))
            return Content(safetensors_header.read(file, self.bytes, self.name).entries)


def weights(store: Store, expert: Expert) -> Weights:
    """Find the file of an expert in its variant; raises StoreError if it has not been prepared in it.

    In fp32 an expert that was not prepared runs from the weights as they were trained.
    """
    manifest = store.manifest(expert.weights)
    prepared = next((one for variant, one in manifest.variants.items() if variant == expert.variant), None)
    if prepared is None and expert.variant != "fp32":
        have = ", ".join(sorted({"fp32", *manifest.variants}))
        raise StoreError(
            f"'{expert.weights}' has not been prepared in {expert.variant} (there is {have}); "
            f"run `coe-experts prepare {expert.weights}`"
        )
    file = prepared.file if prepared else manifest.file
    path = store.folder(expert.weights) / file
    return Weights(path, f"{expert.weights}/{file}", expert, manifest, prepared)


def proved(weights: Weights) -> bytes:
    """Return all that a weights file holds; raises StoreError where it is not what the manifest says."""
    with _opened(weights) as file:
        _check_size(file, weights, weights.bytes, _IMPORT)
        with os.fdopen(file, "rb", closefd=False) as reader:
            data = reader.read(weights.bytes)
    if xxhash.xxh3_128_hexdigest(data) != weights.manifest.checksum:
        raise StoreError(f"{weights.name} is damaged (its checksum differs from the manifest); {_IMPORT}")
    return data


@contextmanager
def _opened(weights: Weights) -> Iterator[int]:
    """Give the file's descriptor. It stays the same file, whatever is renamed into its place meanwhile."""
    try:
        with regular.opened(weights.path) as file:
            yield file
    except OSError as error:
        raise StoreError(f"{weights.name} cannot be read: {error.strerror or error}") from error


def _fill(file: int, into: memoryview, offset: int, name: str) -> None:
    done = 0
    while done < len(into):
        with into[done:] as rest:
            got = regular.read_into(file, rest, offset + done)
        if not got:
            raise StoreError(f"{name} ended at {offset + done:,} bytes while it was read (truncated?)")
        done += got


def _check_size(file: int, weights: Weights, expected: int, again: str) -> None:
    size = os.fstat(file).st_size
    if size != expected:
        raise StoreError(f"{weights.name} has {size:,} bytes, not {expected:,} (truncated?); {again}")


# Blobs

_AGAIN = "prepare the expert again (coe-experts prepare)"


def _head(file: int, weights: Weights) -> bytes:
    """Return all that comes before the data."""
    start = regular.read_at(file, _HEAD_BYTES, 0)
    end = blob_format.data_start(start[:PAGE], weights.name)
    if len(start) < end:
        start += regular.read_at(file, end - len(start), len(start))
    return start[:end]


def _header(head: bytes, weights: Weights, prepared: PreparedVariant) -> Header:
    header = blob_format.decode(head, weights.name)
    if xxhash.xxh3_128_hexdigest(head) != prepared.digest:
        raise StoreError(f"{weights.name} is not the blob that the manifest tells of (another header); {_AGAIN}")
    expert = weights.expert
    said, found = (expert.kind, expert.variant, len(expert.labels)), (header.kind, header.variant, header.labels)
    if said != found:
        raise StoreError(
            f"{weights.name} is of kind {found[0]} in {found[1]} for {found[2]} labels, "
            f"not of kind {said[0]} in {said[1]} for {said[2]}; {_AGAIN}"
        )
    weights.manifest.prove(header.identity, weights.name)
    return header


def _read_blob(file: int, weights: Weights, prepared: PreparedVariant, buffers: Lender[M]) -> tuple[M, Content]:
    head = _head(file, weights)
    header = _header(head, weights, prepared)
    _check_size(file, weights, len(head) + header.data_bytes, _AGAIN)
    with _lent(buffers, header.data_bytes) as buffer, buffer.bytes() as data:
        for number, right in enumerate(header.checksums):
            at = number * CHUNK
            with data[at : min(at + CHUNK, header.data_bytes)] as chunk:
                _fill(file, chunk, len(head) + at, weights.name)
                if blob_format.digest(chunk) != right:
                    raise StoreError(
                        f"{weights.name} is damaged in chunk {number + 1} of {len(header.checksums)} "
                        f"(its checksum differs); {_AGAIN}"
                    )
    return buffer, _content(header)


def _content(header: Header) -> Content:
    return Content(header.tensors, header.variant, header.folded, header.quantised)


@contextmanager
def _lent(buffers: Lender[M], size: int) -> Iterator[M]:
    """Lend a buffer to be filled; it goes back at once where that fails."""
    buffer = buffers.take(size)
    try:
        yield buffer
    except BaseException:
        buffers.give(buffer)
        raise


# Weights as they were trained

_IMPORT = "import the expert again"


def _read_safetensors(file: int, weights: Weights, buffers: Lender[M]) -> tuple[M, Content]:
    name, size = weights.name, weights.manifest.bytes
    _check_size(file, weights, size, _IMPORT)
    start = safetensors_header.data_start(regular.read_at(file, safetensors_header.LENGTH_BYTES, 0), size, name)
    # The file begins where its tensors come to lie as those of a blob do.
    first = -start % ALIGNMENT
    with _lent(buffers, first + size) as buffer:
        with buffer.bytes() as memory, memory[first : first + size] as data:
            checksum = xxhash.xxh3_128()
            for at in range(0, size, CHUNK):
                with data[at : at + CHUNK] as chunk:
                    _fill(file, chunk, at, name)
                    checksum.update(chunk)
            if checksum.hexdigest() != weights.manifest.checksum:
                raise StoreError(f"{name} is damaged (its checksum differs from the manifest); {_IMPORT}")
            text = bytes(data[safetensors_header.LENGTH_BYTES : start])
        header = safetensors_header.decode(text, size - start, name)
        weights.manifest.prove(header.identity, name)
    return buffer, Content(header.entries, start=first + start)
