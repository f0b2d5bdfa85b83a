"""An expert's weights in one buffer; tensors are views of it and nothing is copied.

A blob lives until `release`: then its views are gone and the next expert is read into the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from coe.errors import StoreError
from coe.runtime.buffers import Buffer, Buffers
from coe.runtime.processor import has_bf16
from coe.store.blob_format import BLOCK, Dtype, Quantised, TensorEntry, Variant, padded

Spec = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""What a skeleton expects: shape and dtype by name."""

DTYPES: dict[Dtype, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "Q8": torch.int8,
}
"""What torch calls the types of a blob."""
NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "Q8"}
"""And what a blob calls those of torch."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What a skeleton must be to run a blob: of which precision, and which (conv, norm) are one convolution."""

    dtype: torch.dtype = torch.float32
    folded: tuple[tuple[str, str], ...] = ()


PLAIN = Structure()
"""That of a kind as it is trained."""


def structure_of(variant: Variant, folded: tuple[tuple[str, str], ...]) -> Structure:
    """Return the structure that runs a variant here: in bf16 where the processor has it, else in fp32."""
    return Structure(torch.bfloat16 if variant == "bf16" and has_bf16() else torch.float32, folded)


def converted(entries: Sequence[TensorEntry], quantised: Quantised | None, dtype: torch.dtype) -> int:
    """Return how many numbers are not of the precision that runs, each tensor in whole blocks."""
    plain = [one for one in entries if one.dtype != "Q8" and converts(DTYPES[one.dtype], dtype)]
    return sum(padded(one.elements, BLOCK) for one in plain) + (quantised.blocks * BLOCK if quantised else 0)


def converts(own: torch.dtype, dtype: torch.dtype) -> bool:
    """Tell whether numbers of one precision are converted to run in another; counters stay as they are."""
    return own.is_floating_point and own != dtype


@dataclass(frozen=True, slots=True)
class Values:
    """All quantised numbers of a blob: `numbers` (blocks * 128) int8 and a scale for each 128, (blocks) fp16."""

    numbers: torch.Tensor
    scales: torch.Tensor
    places: Mapping[str, TensorEntry]
    """Where each tensor lies; offsets are those of its first number."""


@dataclass(frozen=True, slots=True)
class Content:
    """What lies in a buffer: `entries` of data that begin at `start` bytes."""

    entries: tuple[TensorEntry, ...]
    variant: Variant = "fp32"
    folded: tuple[tuple[str, str], ...] = ()
    quantised: Quantised | None = None
    start: int = 0

    @property
    def data_bytes(self) -> int:
        """Where the last of the data ends, in bytes from their start."""
        ends = [entry.offset + entry.bytes for entry in self.entries]
        if self.quantised is not None:
            ends.append(self.quantised.scales + 2 * self.quantised.blocks)
        return max(ends, default=0)


class Blob:
    """Weights in memory: `tensors` by name, views of the buffer, and beside them `values` of a quantised blob."""

    def __init__(self, buffer: Buffer, content: Content, buffers: Buffers) -> None:
        """Look at what lies in a buffer that `buffers` lent."""
        entries, quantised, start = content.entries, content.quantised, content.start
        self._buffer: Buffer | None = buffer
        self._buffers = buffers
        self.bytes = len(buffer)
        self.variant = content.variant
        self.structure = structure_of(content.variant, content.folded)
        self.tensors = {one.name: _view(buffer, one, start) for one in entries if one.dtype != "Q8"}
        self.values = _values(buffer, entries, quantised, start) if quantised else None
        self.converted = converted(entries, quantised, self.structure.dtype)
        """How many numbers must be converted to run."""

    def __repr__(self) -> str:
        return f"<Blob {self.variant}, {len(self.tensors)} tensors, {self.bytes:,} bytes>"

    @property
    def is_released(self) -> bool:
        """Whether the buffer has gone back."""
        return self._buffer is None

    def expect(self, spec: Spec) -> None:
        """Compare with what a skeleton expects; raises StoreError naming the first tensor that does not fit.

        Numbers of a precision other than fp32 need not be of the skeleton's: they are converted.
        """
        places = self.values.places if self.values else {}
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}
        found |= {name: (place.shape, torch.float32) for name, place in places.items()}
        expect(found, self.variant, spec)

    def release(self) -> None:
        """Give the buffer back. Slots must have let go of the blob; a view that is left keeps the memory from reuse."""
        self.tensors, self.values = {}, None
        if self._buffer is not None:
            self._buffers.give(self._buffer)
        self._buffer = None


def expect(found: Spec, variant: Variant, spec: Spec) -> None:
    """Compare the tensors of a blob with what a skeleton expects; see `Blob.expect`."""
    for name, (shape, dtype) in spec.items():
        if name not in found:
            raise StoreError(f"the weights lack '{name}'; they are of another kind")
        own_shape, own_dtype = found[name]
        may_convert = variant != "fp32" and own_dtype.is_floating_point and dtype.is_floating_point
        if own_shape != shape or (own_dtype != dtype and not may_convert):
            raise StoreError(
                f"'{name}' is {own_shape} {own_dtype}, not {shape} {dtype}; "
                f"the weights are of another kind or another number of labels"
            )
    if extra := sorted(set(found) - set(spec)):
        raise StoreError(f"the weights hold '{extra[0]}', which the kind does not know")


def shaped(flat: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """Return the numbers of a tensor, which lie in a row, in its shape."""
    if not entry.channels_last:
        return flat.view(entry.shape)
    out, channels, height, width = entry.shape
    return flat.view(out, height, width, channels).permute(0, 3, 1, 2)


def _view(buffer: Buffer, entry: TensorEntry, start: int) -> torch.Tensor:
    dtype = DTYPES[entry.dtype]
    if not entry.elements:
        return torch.empty(entry.shape, dtype=dtype)
    return shaped(buffer.tensor(dtype, entry.elements, start + entry.offset), entry)


def _values(buffer: Buffer, entries: Sequence[TensorEntry], quantised: Quantised, start: int) -> Values | None:
    if not quantised.blocks:
        return None
    places = {
        one.name: one.model_copy(update={"offset": one.offset - quantised.values})
        for one in entries
        if one.dtype == "Q8"
    }
    numbers = buffer.tensor(torch.int8, quantised.blocks * BLOCK, start + quantised.values)
    return Values(numbers, buffer.tensor(torch.float16, quantised.blocks, start + quantised.scales), places)
