"""An expert's weights in one buffer: tensors are views of the buffer, and nothing is copied.

A blob lives until `release`, which drops the views; then the next expert is read into the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from coe.errors import StoreError
from coe.runtime.buffers import Buffer, Buffers
from coe.store.blob_format import Content, Dtype, TensorEntry, Variant
from coe.store.runnable_kinds import Session

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


def converts(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Tell whether numbers stored in one precision are converted to run in another; whole numbers never are."""
    return stored.is_floating_point and stored != dtype


class Blob:
    """Weights in memory: `tensors` by name, views of the buffer.

    An expert that was divided has its other tensors in a `body`, which other experts use too.
    """

    def __init__(self, buffer: Buffer, content: Content, buffers: Buffers, body: Blob | None = None) -> None:
        """Make views of the content of a buffer that `buffers` lent."""
        self.body = body
        self.session: Session | None = None
        """What computes the layers of a body in place of torch, see `coe.runtime.cpu.open_body`."""
        self._buffer: Buffer | None = buffer
        self._buffers = buffers
        self.bytes = len(buffer)
        self.variant = content.variant
        optional = content.optional | (body.structure.optional if body is not None else frozenset())
        self.structure: Structure = Structure(folded=content.folded, optional=optional)
        data = buffer.tensor(torch.uint8, content.data_bytes, content.start)
        self.tensors: dict[str, torch.Tensor] = {}
        for entry, count in zip(content.entries, content.counts, strict=True):
            dtype = DTYPES[entry.dtype]
            flat = data[entry.offset : entry.offset + count * dtype.itemsize].view(dtype)
            self.tensors[entry.name] = shaped(flat, entry)

    def __repr__(self) -> str:
        return f"<Blob {self.variant}, {len(self.tensors)} tensors, {self.bytes:,} bytes>"

    @property
    def is_released(self) -> bool:
        """Whether the buffer has gone back."""
        return self._buffer is None

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each tensor, by name."""
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}

    def expect(self, spec: Spec) -> None:
        """Compare with what a skeleton expects; raises StoreError naming the first tensor that does not fit."""
        tensors = self.shapes if self.body is None else joined(self.shapes, self.body.shapes)
        expect(tensors, self.variant, spec)

    def release(self) -> None:
        """Give the buffer back. Slots must have unbound the blob; a view that is left keeps the memory from reuse."""
        self.tensors, self.session = {}, None
        if self._buffer is not None:
            self._buffers.give(self._buffer)
        self._buffer = None


def joined(own: Spec, body: Spec) -> Spec:
    """Return shapes and types of the tensors of an expert and of its body; raises StoreError if both hold one."""
    if twice := sorted(own.keys() & body.keys()):
        raise StoreError(f"the weights and their body both hold '{twice[0]}'; they do not belong together")
    return {**body, **own}


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
