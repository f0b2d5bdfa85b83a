"""An expert's weights in one buffer: tensors are views of the buffer, and nothing is copied.

A blob lives until `release`, which drops the views; then the next expert is read into the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from coe.errors import StoreError
from coe.runtime.buffers import Buffer, Buffers
from coe.runtime.processor import has_bf16
from coe.store.blob_format import BLOCK, Difference, Dtype, Quantised, TensorEntry, Variant, padded
from coe.store.runnable_kinds import Session
from coe.store.skeletons import optional_of

Spec = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""What a skeleton expects: shape and dtype by name."""

_AGAIN = "prepare the expert again (coe-experts prepare)"

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
"""torch's types by the names that a blob gives them."""
NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "Q8"}
"""The names that a blob gives to torch's types."""


@dataclass(frozen=True, slots=True)
class Structure:
    """How a skeleton must be built to run a blob: its precision, and the (conv, norm) pairs that are folded.

    `optional` is what it has of that which its network may lack.
    """

    dtype: torch.dtype = torch.float32
    folded: tuple[tuple[str, str], ...] = ()
    optional: frozenset[str] = frozenset()


PLAIN = Structure()
"""The structure of a kind as it is trained."""


def folded_skeleton(module: torch.nn.Module, pairs: Iterable[tuple[str, str]]) -> torch.nn.Module:
    """Give a network the structure that a blob's header states, and return it; it is changed in place.

    Each of `pairs` names a convolution and the batch norm folded into it: the convolution gets a bias (zeros, of the
    dtype and on the device of its weight) if it has none, the norm becomes its activation, or an identity. Then
    `state_dict` has the names and shapes of the blob's tensors. Raises StoreError if a name is not a convolution or a
    batch norm of the network.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    for conv_name, norm_name in pairs:
        conv, norm = modules.get(conv_name), modules.get(norm_name)
        if not isinstance(conv, torch.nn.Conv2d) or not isinstance(norm, torch.nn.BatchNorm2d):
            raise StoreError(
                f"the blob folds '{norm_name}' into '{conv_name}', which the kind does not have as a batch norm and a "
                f"convolution; {_AGAIN}"
            )
        if conv.bias is None:
            bias = conv.weight.new_zeros(conv.out_channels)
            conv.bias = torch.nn.Parameter(bias, requires_grad=conv.weight.requires_grad)
        # timm's norms end with the activation that follows them.
        module.set_submodule(norm_name, getattr(norm, "act", torch.nn.Identity()).train(norm.training))
    return module


def structure_of(content: Content, *, optional: frozenset[str]) -> Structure:
    """Return the structure that runs a blob on the CPU: bf16 in bf16 if the processor has it, all else in fp32.

    What is `optional` is in the blob or in its body.
    """
    dtype = torch.bfloat16 if content.variant == "bf16" and has_bf16() else torch.float32
    return Structure(dtype, content.folded, optional)


def converted(entries: Sequence[TensorEntry], quantised: Quantised | None, dtype: torch.dtype) -> int:
    """Return how many numbers must be converted to run in `dtype`, each tensor rounded up to whole blocks."""
    plain = [entry for entry in entries if entry.dtype != "Q8" and converts(DTYPES[entry.dtype], dtype)]
    return sum(padded(entry.elements, BLOCK) for entry in plain) + (quantised.blocks * BLOCK if quantised else 0)


def converts(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Tell whether numbers stored in one precision are converted to run in another; whole numbers never are."""
    return stored.is_floating_point and stored != dtype


@dataclass(frozen=True, slots=True)
class Values:
    """All quantised numbers of a blob: `numbers` (blocks * 128) int8 and a scale for each 128, (blocks) fp16."""

    numbers: torch.Tensor
    scales: torch.Tensor
    places: Mapping[str, TensorEntry]
    """Where each tensor lies; offsets count numbers, not bytes."""


@dataclass(frozen=True, slots=True)
class Content:
    """What lies in a buffer: the data of `entries`, beginning at byte `start`."""

    entries: tuple[TensorEntry, ...]
    variant: Variant = "fp32"
    folded: tuple[tuple[str, str], ...] = ()
    quantised: Quantised | None = None
    differences: tuple[Difference, ...] = ()
    start: int = 0

    @property
    def data_bytes(self) -> int:
        """Where the data end, in bytes from their start."""
        ends = [entry.offset + entry.bytes for entry in self.entries]
        if self.quantised is not None:
            ends.append(self.quantised.scales + 2 * self.quantised.blocks)
        return max(ends, default=0)

    @property
    def optional(self) -> frozenset[str]:
        """What it holds of that which its network may lack."""
        return optional_of(entry.name for entry in self.entries)


class Blob:
    """Weights in memory: `tensors` by name, views of the buffer, and the quantised `values`, if there are any.

    An expert that was divided has its other tensors in a `body`, which other experts may use too, unless the expert
    `owns_body`.
    """

    def __init__(
        self, buffer: Buffer, content: Content, buffers: Buffers, body: Blob | None = None, *, owns_body: bool = False
    ) -> None:
        """Make views of the content of a buffer that `buffers` lent."""
        self.body, self.owns_body = body, owns_body
        self.session: Session | None = None
        """What computes the layers of a body in place of torch, see `coe.runtime.sessions.open_body`."""
        entries, quantised, start = content.entries, content.quantised, content.start
        self._buffer: Buffer | None = buffer
        self._buffers = buffers
        self.bytes = len(buffer)
        self.variant = content.variant
        self.differences = content.differences
        optional = content.optional | (body.structure.optional if body is not None else frozenset())
        self.structure: Structure = structure_of(content, optional=optional)
        self.tensors = {entry.name: _view(buffer, entry, start) for entry in entries if entry.dtype != "Q8"}
        self.values = _values(buffer, entries, quantised, start) if quantised else None
        self.converted = converted(entries, quantised, self.structure.dtype)
        """How many numbers must be converted to run."""

    def __repr__(self) -> str:
        return f"<Blob {self.variant}, {len(self.tensors)} tensors, {self.bytes:,} bytes>"

    @property
    def is_released(self) -> bool:
        """Whether the buffer has gone back."""
        return self._buffer is None

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each tensor, by name; those of a quantised tensor are of what it stands for.

        Factors of differences are among them.
        """
        places = self.values.places if self.values else {}
        tensors = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}
        return tensors | {name: (place.shape, torch.float32) for name, place in places.items()}

    def expect(self, spec: Spec) -> None:
        """Compare with what a skeleton expects; raises StoreError naming the first tensor that does not fit.

        A variant other than fp32 may have another precision than the skeleton: its numbers are converted.
        """
        tensors = self.shapes if self.body is None else joined(self.shapes, self.body.shapes, self)
        expect(tensors, self.variant, spec)

    def release(self) -> None:
        """Give the buffer back, and that of a body that is its own.

        Slots must have unbound the blob; a view that is left keeps the memory from reuse.
        """
        self.tensors, self.values, self.session = {}, None, None
        if self.body is not None and self.owns_body:
            self.body.release()
        if self._buffer is not None:
            self._buffers.give(self._buffer)
        self._buffer = None


def joined(own: Spec, body: Spec, of: Blob | Content) -> Spec:
    """Return shapes and types of the tensors of an expert and of its body; raises StoreError if they do not fit.

    Factors of differences are left out. If the expert's blob, `of`, is a difference, a tensor of both is its own.
    """
    factors = {name for difference in of.differences for name in difference.parts}
    if of.variant != "delta" and (twice := sorted(own.keys() & body.keys())):
        raise StoreError(f"the weights and their body both hold '{twice[0]}'; they do not belong together")
    for difference in of.differences:
        shape = body[difference.name][0] if difference.name in body else ()
        changed = *own[difference.row][0], own[difference.right][0][1]
        if not shape or (shape[0], math.prod(shape[1:])) != changed:
            raise StoreError(f"the weights change '{difference.name}', which their body does not hold so; {_AGAIN}")
    return {**body, **{name: tensor for name, tensor in own.items() if name not in factors}}


def expect(tensors: Spec, variant: Variant, spec: Spec) -> None:
    """Compare the shapes and types of a blob's tensors with what a skeleton expects; see `Blob.expect`."""
    for name, (shape, dtype) in spec.items():
        if name not in tensors:
            raise StoreError(f"the weights lack '{name}'; they are of another kind")
        blob_shape, blob_dtype = tensors[name]
        may_convert = variant != "fp32" and blob_dtype.is_floating_point and dtype.is_floating_point
        if blob_shape != shape or (blob_dtype != dtype and not may_convert):
            raise StoreError(
                f"'{name}' is {blob_shape} {blob_dtype}, not {shape} {dtype}; "
                f"the weights are of another kind or another number of labels"
            )
    if extra := sorted(set(tensors) - set(spec)):
        raise StoreError(
            f"the weights hold '{extra[0]}', which the kind does not know; train or import the expert again"
        )


def shaped(flat: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """Return a tensor's numbers, given as (n,), in the tensor's shape."""
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
        entry.name: entry.model_copy(update={"offset": entry.offset - quantised.values})
        for entry in entries
        if entry.dtype == "Q8"
    }
    numbers = buffer.tensor(torch.int8, quantised.blocks * BLOCK, start + quantised.values)
    return Values(numbers, buffer.tensor(torch.float16, quantised.blocks, start + quantised.scales), places)
