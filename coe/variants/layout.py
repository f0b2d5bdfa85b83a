"""From a folded expert to the bytes of a blob, in each variant; and back to tensors, to measure these bytes.

The same weights always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from coe.errors import StoreError
from coe.runtime.blob import DTYPES, NAMES, shaped
from coe.store import blob_layout
from coe.store.blob_format import (
    BLOCK,
    MODEL,
    Dtype,
    Header,
    Identity,
    TensorEntry,
    Variant,
    lies_channels_last,
    padded,
)
from coe.store.blob_layout import BlobBytes, StoredTensor
from coe.store.outputs import is_finite
from coe.variants.fold import Folded

FLOATS: dict[Variant, torch.dtype] = {"fp16": torch.float16}
"""The precision in which a variant is stored and run; other variants run in the precision of the weights."""
_STEPS = 127
"""Weights in blocks are values from -127 to 127."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """values: (blocks * 128,) int8; scales: (blocks,) fp16. A weight is a value times the scale of its block."""

    values: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A blob in memory. `data`: (header.data_bytes,) uint8."""

    header: Header
    data: torch.Tensor

    @property
    def bytes(self) -> BlobBytes:
        """The same without torch."""
        return BlobBytes(self.header, self.data.numpy().data)


def lay_out(folded: Folded, variant: Variant, *, kind: str, labels: int, identity: Identity | None = None) -> LaidOut:
    """Lay out an expert's weights in a variant; raises StoreError if the variant cannot hold them.

    `identity` is the identity that the weights carry.
    """
    plain, blocks = _converted(folded.state, variant)
    parts = {
        name: StoredTensor(_entry(name, "Q8", tensor), _raw(blocks[name].values), _raw(blocks[name].scales))
        if name in blocks
        else StoredTensor(_entry(name, _dtype(name, plain[name]), tensor), _raw(in_order(plain[name])))
        for name, tensor in folded.state.items()
    }
    like = Header(
        kind=kind,
        variant=variant,
        labels=labels,
        tensors=(),
        folded=folded.pairs,
        data_bytes=0,
        checksums=(),
        identity=identity,
    )
    return stored(blob_layout.lay_out(parts, like))


def stored(blob: BlobBytes) -> LaidOut:
    """Return a blob for torch; its bytes stay where they are."""
    # An empty buffer would be an error to torch.
    data = torch.frombuffer(blob.data, dtype=torch.uint8) if len(blob.data) else torch.empty(0, dtype=torch.uint8)
    return LaidOut(blob.header, data)


def lay_out_model(
    model: bytes, weights: Mapping[str, torch.Tensor], *, kind: str, labels: int, identity: Identity | None
) -> LaidOut:
    """Lay out an ONNX model in `int8`, and the weights that it is given by name when it is opened."""
    parts = {MODEL: torch.frombuffer(bytearray(model), dtype=torch.uint8), **weights}
    like = Header(kind=kind, variant="int8", labels=labels, tensors=(), data_bytes=0, checksums=(), identity=identity)
    blob = blob_layout.lay_out(
        {
            name: StoredTensor(_entry(name, _dtype(name, tensor), tensor), _raw(in_order(tensor)))
            for name, tensor in parts.items()
        },
        like,
    )
    return stored(blob)


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
            blocks = raw.view(torch.int8).float().view(-1, BLOCK) * scales.float()[:, None]
            flat = blocks.view(-1)[: entry.elements]
        else:
            flat = raw.view(DTYPES[entry.dtype])
        views[entry.name] = shaped(flat, entry)
    return views


def _converted(state: dict[str, torch.Tensor], variant: Variant) -> tuple[dict[str, torch.Tensor], dict[str, Blocks]]:
    """Return a variant's plain tensors, in its precision, and the tensors that become blocks."""
    plain: dict[str, torch.Tensor] = {}
    blocks: dict[str, Blocks] = {}
    for name, tensor in state.items():
        quantised = quantise(in_order(tensor)) if variant == "q8" and can_be_blocks(tensor) else None
        if quantised is not None:
            blocks[name] = quantised
        elif variant in FLOATS and tensor.is_floating_point():
            plain[name] = tensor.to(FLOATS[variant])
            if not is_finite(plain[name]):
                raise StoreError(f"'{name}' holds values that {variant} cannot represent; leave this variant out")
        else:
            plain[name] = tensor
    return plain, blocks


def can_be_blocks(tensor: torch.Tensor) -> bool:
    """Tell whether `q8` holds a tensor as blocks, unless a scale overflows.

    A block over several output channels rounds the small weights of one by the scale of another: of EfficientNet-Lite0
    with its depthwise kernels of 9 weights nothing was left. So channels of less than half a block stay as they are.
    """
    return tensor.dtype == torch.float32 and tensor.ndim >= 2 and tensor.numel() * 2 >= BLOCK * len(tensor) > 0


def _entry(name: str, dtype: Dtype, tensor: torch.Tensor) -> TensorEntry:
    shape = tuple(tensor.shape)
    last = lies_channels_last(shape, tensor.is_floating_point())
    return TensorEntry(name=name, dtype=dtype, shape=shape, offset=0, channels_last=last)


def _dtype(name: str, tensor: torch.Tensor) -> Dtype:
    if tensor.dtype not in NAMES:
        raise StoreError(f"'{name}' is of type {tensor.dtype}, which a blob cannot hold")
    return NAMES[tensor.dtype]


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements, (n,), in the order in which a blob holds them."""
    last = lies_channels_last(tuple(tensor.shape), tensor.is_floating_point())
    return (tensor.permute(0, 2, 3, 1) if last else tensor).contiguous().view(-1)


def _raw(numbers: torch.Tensor) -> memoryview:
    """Return the bytes of numbers (n,)."""
    return numbers.view(torch.uint8).numpy().data


def quantise(weights: torch.Tensor) -> Blocks | None:
    """Quantise weights, (n,) fp32 and finite; return None if a scale overflows fp16. Zeros fill up the last block.

    Scales are rounded up, so that no weight is clipped: each is off by half its block's scale at most.
    """
    blocks = pad(weights, (0, padded(len(weights), BLOCK) - len(weights))).view(-1, BLOCK)
    exact = blocks.abs().amax(dim=1) / _STEPS
    scales = exact.half()
    low = scales.float() < exact
    # The bits of positive halves are in the order of their values: adding 1 to the bits gives the next larger half.
    scales = torch.where(low, (scales.view(torch.int16) + 1).view(torch.float16), scales)
    if not bool(scales.isfinite().all()):
        return None
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).float()
    values = (blocks / steps[:, None]).round_().clamp_(-_STEPS, _STEPS).to(torch.int8)
    return Blocks(values.view(-1), scales)
