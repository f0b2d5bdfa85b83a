"""Memory for weights that is reused: a fresh page costs eight times as much as reading a file into an old page.

Idle buffers need no extra budget. Lent and idle bytes together never exceed the most bytes that were lent at one time,
and lent bytes never exceed the pools, because a pool counts an expert from its load to its eviction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import numpy as np
import torch

from coe.helpers.system import memory_resizes, private_memory
from coe.store.blob_format import PAGE, padded


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
