"""Where tensors lie in a blob: quantised tensors, their scales, then the others. The bytes of a tensor never change.

So a blob can be divided into a body and the rest, and each part depends on its own tensors alone.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from coe.store.blob_format import ALIGNMENT, BLOCK, CHUNK, PAGE, Header, Quantised, TensorEntry, digest, padded


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a blob holds it: its bytes and, if it is quantised, the bytes of its scales.

    The offset of `entry` is its place in the blob that it was taken from; it means nothing to another blob.
    """

    entry: TensorEntry
    data: memoryview
    scales: memoryview | None = None


@dataclass(frozen=True, slots=True)
class BlobBytes:
    """A blob in memory. `data`: `header.data_bytes` bytes."""

    header: Header
    data: memoryview

    def chunks(self) -> Iterator[memoryview]:
        """Yield the data in the pieces that have a checksum each."""
        for start in range(0, len(self.data), CHUNK):
            yield self.data[start : start + CHUNK]

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors by name, in the order of the header; their bytes are views of the data."""
        return {entry.name: self._tensor(entry) for entry in self.header.tensors}

    def _tensor(self, entry: TensorEntry) -> StoredTensor:
        data = self.data[entry.offset : entry.offset + entry.bytes]
        parts = self.header.quantised
        if entry.dtype != "Q8" or parts is None:
            return StoredTensor(entry, data)
        first = parts.scales + 2 * ((entry.offset - parts.values) // BLOCK)
        return StoredTensor(entry, data, self.data[first : first + 2 * (entry.bytes // BLOCK)])


def lay_out(tensors: Mapping[str, StoredTensor], like: Header) -> BlobBytes:
    """Lay out tensors as a blob that is `like` another in all but its tensors and their places."""
    blocks = {name: tensor for name, tensor in tensors.items() if tensor.scales is not None}
    plain = {name: tensor for name, tensor in tensors.items() if tensor.scales is None}
    count = sum(tensor.entry.bytes for tensor in blocks.values()) // BLOCK
    scales = padded(count * BLOCK, ALIGNMENT)
    size = padded(scales + 2 * count, ALIGNMENT) if count else 0
    places: dict[str, int] = {}
    end = 0
    for name, tensor in blocks.items():
        places[name] = end
        end += tensor.entry.bytes
    for name, tensor in plain.items():
        places[name] = size
        size = padded(size + tensor.entry.bytes, ALIGNMENT)
    data = memoryview(bytearray(padded(size, PAGE)))
    for name, tensor in tensors.items():
        data[places[name] : places[name] + tensor.entry.bytes] = tensor.data
        if tensor.scales is not None:
            first = scales + 2 * (places[name] // BLOCK)
            data[first : first + len(tensor.scales)] = tensor.scales
    header = like.model_copy(
        update={
            "tensors": tuple(t.entry.model_copy(update={"offset": places[name]}) for name, t in tensors.items()),
            "quantised": Quantised(values=0, scales=scales, blocks=count) if count else None,
            "data_bytes": len(data),
        }
    )
    blob = BlobBytes(header, data)
    checksums = tuple(digest(chunk) for chunk in blob.chunks())
    return BlobBytes(header.model_copy(update={"checksums": checksums}), data)


def body_of(blob: BlobBytes, names: Container[str]) -> BlobBytes:
    """Return the body of a blob: its tensors of these names, without anything that is one expert's alone."""
    pairs = tuple(pair for pair in blob.header.folded if f"{pair[0]}.weight" in names)
    like = blob.header.model_copy(update={"labels": 0, "identity": None, "folded": pairs, "body": ""})
    return lay_out({name: tensor for name, tensor in _by_name(blob) if name in names}, like)


def rest_of(blob: BlobBytes, names: Container[str], body: str) -> BlobBytes:
    """Return what is left of a blob without its tensors of these names, which lie in the body of digest `body`."""
    like = blob.header.model_copy(update={"body": body})
    return lay_out({name: tensor for name, tensor in _by_name(blob) if name not in names}, like)


def _by_name(blob: BlobBytes) -> list[tuple[str, StoredTensor]]:
    # The tensors of a blob that was joined stand in another order, and equal tensors must give equal bytes.
    return sorted(blob.tensors().items())


def joined(body: BlobBytes, rest: BlobBytes) -> BlobBytes:
    """Return the whole blob of a body and a rest; its tensors stand in another order than in the blob that was divided.

    A tensor that both hold is the body's.
    """
    return lay_out({**rest.tensors(), **body.tensors()}, rest.header.model_copy(update={"body": ""}))


def body_names(prepared: Iterable[str], own: Collection[str], folded: Iterable[tuple[str, str]]) -> set[str]:
    """Return the tensors of a prepared network that belong to its body; `own` are the trained tensors that do not.

    A folded convolution belongs to the body if all trained tensors of it and of its norm do.
    """
    trained = {name.rpartition(".")[0] for name in own}
    torn = {conv for conv, norm in folded if conv in trained or norm in trained}
    return {name for name in prepared if name not in own and name.rpartition(".")[0] not in torn}
