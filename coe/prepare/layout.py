"""From a folded expert to the bytes of a blob, in each variant; and back to tensors, to measure these bytes.

The same weights always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from coe.errors import StoreError
from coe.prepare.fold import Folded
from coe.prepare.quantise import Blocks, quantise
from coe.runtime.arena import dequantise
from coe.runtime.blob import DTYPES, NAMES, shaped
from coe.store.blob_format import (
    ALIGNMENT,
    BLOCK,
    CHUNK,
    PAGE,
    Dtype,
    Header,
    Identity,
    Quantised,
    TensorEntry,
    Variant,
    digest,
    lies_channels_last,
    padded,
)

FLOATS: dict[Variant, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precision in which a variant is stored and run; other variants run in the precision of the weights."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A blob in memory. `data`: (header.data_bytes,) uint8."""

    header: Header
    data: torch.Tensor


def lay_out(folded: Folded, variant: Variant, *, kind: str, labels: int, identity: Identity | None = None) -> LaidOut:
    """Lay out an expert's weights in a variant; raises StoreError if the variant cannot hold them.

    `identity` is the identity that the weights carry.
    """
    plain, blocks = _converted(folded.state, variant)
    entries: dict[str, TensorEntry] = {}
    count = sum(len(quantised.scales) for quantised in blocks.values())
    scales = padded(count * BLOCK, ALIGNMENT)
    size = padded(scales + 2 * count, ALIGNMENT) if count else 0
    end = 0
    for name, quantised in blocks.items():
        entries[name] = _entry(name, "Q8", folded.state[name], end)
        end += len(quantised.values)
    for name, tensor in plain.items():
        entries[name] = _entry(name, _dtype(name, tensor), tensor, size)
        size = padded(size + tensor.nbytes, ALIGNMENT)

    data = torch.zeros(padded(size, PAGE), dtype=torch.uint8)
    for name, quantised in blocks.items():
        _put(data, entries[name].offset, quantised.values)
        _put(data, scales + 2 * (entries[name].offset // BLOCK), quantised.scales)
    for name, tensor in plain.items():
        _put(data, entries[name].offset, _in_order(tensor))
    header = Header(
        kind=kind,
        variant=variant,
        labels=labels,
        tensors=tuple(entries[name] for name in folded.state),
        folded=folded.pairs,
        quantised=Quantised(values=0, scales=scales, blocks=count) if count else None,
        data_bytes=len(data),
        checksums=tuple(digest(chunk) for chunk in chunks(data)),
        identity=identity,
    )
    return LaidOut(header, data)


def chunks(data: torch.Tensor) -> Iterator[memoryview]:
    """Yield the data in the pieces that have a checksum each."""
    view = data.numpy().data
    for start in range(0, len(view), CHUNK):
        yield view[start : start + CHUNK]


def tensors(blob: LaidOut) -> dict[str, torch.Tensor]:
    """Return a blob's tensors by name: views of its data, and new fp32 tensors for the quantised ones."""
    parts = blob.header.quantised
    views = {}
    for entry in blob.header.tensors:
        raw = blob.data[entry.offset : entry.offset + entry.bytes]
        if entry.dtype == "Q8":
            assert parts is not None, "both `decode` and `lay_out` guarantee it"
            first = parts.scales + 2 * ((entry.offset - parts.values) // BLOCK)
            scales = blob.data[first : first + 2 * (entry.bytes // BLOCK)].view(torch.float16)
            blocks = torch.empty(len(raw))
            dequantise(raw.view(torch.int8), scales, blocks)
            flat = blocks[: entry.elements]
        else:
            flat = raw.view(DTYPES[entry.dtype])
        views[entry.name] = shaped(flat, entry)
    return views


def _converted(state: dict[str, torch.Tensor], variant: Variant) -> tuple[dict[str, torch.Tensor], dict[str, Blocks]]:
    """Return a variant's plain tensors, in its precision, and the tensors that become blocks."""
    plain: dict[str, torch.Tensor] = {}
    blocks: dict[str, Blocks] = {}
    for name, tensor in state.items():
        quantised = quantise(_in_order(tensor)) if variant == "q8" and _can_be_blocks(tensor) else None
        if quantised is not None:
            blocks[name] = quantised
        elif variant in FLOATS and tensor.is_floating_point():
            plain[name] = tensor.to(FLOATS[variant])
            if not bool(plain[name].isfinite().all()):
                raise StoreError(f"'{name}' holds numbers that {variant} cannot; leave this variant out")
        else:
            plain[name] = tensor
    return plain, blocks


def _can_be_blocks(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.ndim >= 2 and tensor.numel() > 0


def _entry(name: str, dtype: Dtype, tensor: torch.Tensor, offset: int) -> TensorEntry:
    shape = tuple(tensor.shape)
    last = lies_channels_last(shape, tensor.is_floating_point())
    return TensorEntry(name=name, dtype=dtype, shape=shape, offset=offset, channels_last=last)


def _dtype(name: str, tensor: torch.Tensor) -> Dtype:
    if tensor.dtype not in NAMES:
        raise StoreError(f"'{name}' is of type {tensor.dtype}, which a blob cannot hold")
    return NAMES[tensor.dtype]


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements, (n,), in the order in which a blob holds them."""
    last = lies_channels_last(tuple(tensor.shape), tensor.is_floating_point())
    return (tensor.permute(0, 2, 3, 1) if last else tensor).contiguous().view(-1)


def _put(data: torch.Tensor, offset: int, tensor: torch.Tensor) -> None:
    data[offset : offset + tensor.nbytes] = tensor.view(torch.uint8)
