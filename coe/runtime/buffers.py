"""Memory for weights, taken again and again: a fresh page costs eight times what reading a file into an old one does.

What is kept for the next needs no budget of its own: lent and idle bytes together never pass the most that was lent at
one time, and what is lent never passes the pools, because they count an expert from its load to its eviction.
"""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar

import numpy as np
import torch

from coe.store.blob_format import PAGE, padded
from coe.system import private_memory


class Memory(Protocol):
    """What a file is read into."""

    def __len__(self) -> int: ...
    def bytes(self) -> memoryview:
        """Return it to be written to."""
        ...


M = TypeVar("M", bound=Memory)


class Lender(Protocol[M]):
    """Lends memory to read into, and takes it back."""

    def take(self, size: int) -> M:
        """Lend at least `size` bytes."""
        ...

    def give(self, buffer: M) -> None:
        """Take memory back."""
        ...


class Buffer:
    """A run of private memory, page-aligned. It is not resized, and not taken again, while anything looks at it."""

    def __init__(self, size: int) -> None:
        self._mapping = private_memory(size)

    def __len__(self) -> int:
        return len(self._mapping)

    def bytes(self) -> memoryview:
        """Return the buffer to write to; release the view when done."""
        return memoryview(self._mapping)

    def tensor(self, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
        """Return `count` numbers from `offset` bytes on, as a view of one axis."""
        # By way of numpy, whose arrays tell the mapping that it is looked at. `torch.frombuffer` keeps that to itself:
        # the mapping could be resized under the tensor.
        raw = np.frombuffer(self._mapping, np.uint8, count * dtype.itemsize, offset)
        return torch.from_numpy(raw).view(dtype)

    def resize(self, size: int) -> None:
        """Give pages back or take further ones, keeping the others; raises BufferError while anything looks at it."""
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
        """Bytes that wait to be taken again."""
        return sum(map(len, self._idle))

    @property
    def allocated_bytes(self) -> int:
        """Bytes lent and idle."""
        return self._lent_bytes + self.idle_bytes

    def take(self, size: int) -> Buffer:
        """Lend a buffer of at least `size` bytes, rounded up to whole pages; what is in it is left from before.

        The idle one nearest in size is cut or grown to fit. If it must grow, as many other idle bytes go first.
        """
        size = padded(max(1, size), PAGE)
        with self._lock:
            found = self._nearest(size)
            if found is None:
                found = Buffer(size)
            else:
                self._idle.remove(found)
                self._drop(size - len(found))
                if len(found) != size:
                    found.resize(size)
            self._lent_bytes += size
        return found

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. One that somebody still looks at is never lent again: it dies with the last view."""
        with self._lock:
            self._lent_bytes -= len(buffer)
            try:
                buffer.resize(len(buffer))
            except BufferError:
                return
            self._idle.append(buffer)

    def make_room(self, size: int) -> None:
        """Give at least `size` idle bytes back to the system, or all there are, for memory taken elsewhere."""
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
