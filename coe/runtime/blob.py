"""An expert's weights in one buffer: tensors are views of the buffer, and nothing is copied.

A blob lives until `release`, which drops the views; then the next expert is read into the same memory.

Memory is reused, because a fresh page costs eight times as much as reading a file into an old page. Idle buffers need
no extra budget: lent and idle bytes together never exceed the most bytes that were lent at one time, and lent bytes
never exceed the pools, because a pool counts an expert from its load to its eviction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from coe.errors import StoreError
from coe.helpers.system import memory_resizes, private_memory
from coe.store.blob_format import PAGE, Content, Dtype, TensorEntry, Variant, padded
from coe.store.runnable_kinds import Session


class ReadTarget(Protocol):
    """Memory that a file is read into."""

    def __len__(self) -> int: ...
    def part(self, start: int, end: int) -> AbstractContextManager[Sequence[memoryview]]:
        """Give a part of the memory to write to, in pieces if it does not lie in a row."""


M = TypeVar("M", bound=ReadTarget)


class MemoryLender(Protocol[M]):
    """Lends memory to read into, and takes it back."""

    def take(self, size: int) -> M:
        """Lend at least `size` bytes."""

    def give(self, buffer: M) -> None:
        """Take memory back."""


class Buffer:
    """A run of private memory, page-aligned. While a view of it exists, it is neither resized nor lent again."""

    def __init__(self, size: int) -> None:
        self._mapping = private_memory(size)

    def __len__(self) -> int:
        return len(self._mapping)

    @contextmanager
    def part(self, start: int, end: int) -> Iterator[Sequence[memoryview]]:
        """Give a part of the buffer to write to, in one piece."""
        with memoryview(self._mapping) as memory, memory[start:end] as part:
            yield (part,)

    def tensor(self, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
        """Return `count` numbers from `offset` bytes on, as a view of one axis."""
        # By way of numpy, whose arrays register with the mapping as views. `torch.frombuffer` does not: the mapping
        # could be resized under the tensor.
        raw = np.frombuffer(self._mapping, np.uint8, count * dtype.itemsize, offset)
        return torch.from_numpy(raw).view(dtype)

    def resize(self, size: int) -> None:
        """Give pages back or take further pages, keeping the others; raises BufferError while a view of it exists."""
        self._mapping.resize(size)


class Buffers:
    """Lends buffers and takes them back. Called from any thread."""

    def __init__(self) -> None:
        self._idle: list[Buffer] = []
        self._lent_bytes = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Buffers {self._lent_bytes:,} bytes lent, {self.idle_bytes:,} idle>"

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait to be lent again."""
        return sum(map(len, self._idle))

    @property
    def allocated_bytes(self) -> int:
        """Bytes lent and idle."""
        return self._lent_bytes + self.idle_bytes

    def take(self, size: int) -> Buffer:
        """Lend a buffer of `size` bytes, rounded up to whole pages; it holds bytes from earlier uses.

        The idle buffer nearest in size is cut or grown to fit. Before it grows, as many other idle bytes are freed.
        """
        size = padded(max(1, size), PAGE)
        with self._lock:
            buffer = self._nearest(size)
            if buffer is None:
                buffer = Buffer(size)
            else:
                self._idle.remove(buffer)
                self._drop(size - len(buffer))
                if len(buffer) != size:
                    buffer.resize(size)
            self._lent_bytes += size
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. A buffer that still has views is never lent again: it dies with the last view.

        Where memory cannot be resized, no buffer is lent again.
        """
        with self._lock:
            self._lent_bytes -= len(buffer)
            if not memory_resizes():
                return
            try:
                buffer.resize(len(buffer))
            except BufferError:
                return
            self._idle.append(buffer)

    def make_room(self, size: int) -> None:
        """Give at least `size` idle bytes back to the system, or all of them, for memory taken elsewhere."""
        with self._lock:
            self._drop(size)

    def _nearest(self, size: int) -> Buffer | None:
        large = [buffer for buffer in self._idle if len(buffer) >= size]
        return min(large, key=len) if large else max(self._idle, key=len, default=None)

    def _drop(self, size: int) -> None:
        while size > 0 and self._idle:
            smallest = min(self._idle, key=len)
            self._idle.remove(smallest)
            size -= len(smallest)


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
                f"the blob folds '{norm_name}' into '{conv_name}', which are not a batch norm and a convolution of the "
                f"kind; {_AGAIN}"
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
            raise StoreError(f"the weights lack '{name}'; they belong to another kind")
        blob_shape, blob_dtype = tensors[name]
        may_convert = variant != "fp32" and blob_dtype.is_floating_point and dtype.is_floating_point
        if blob_shape != shape or (blob_dtype != dtype and not may_convert):
            raise StoreError(
                f"'{name}' is {blob_shape} {blob_dtype}, not {shape} {dtype}; "
                f"the weights belong to another kind or number of labels"
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
