"""The few operations that the device needs of a GPU. `torch_driver` does them with CUDA; tests fake them on the CPU.

Work is put on streams and done in the order of its stream, some time after `do` has returned. A mark is a position in a
stream. A stream or a thread that must not run early waits for the mark; a waiting stream holds up no thread.
Memory is freed when its tensor dies.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class StreamMark(Protocol):
    """A position in a stream."""

    def wait(self) -> None:
        """Block the calling thread until all work before the mark is done; raises DeviceLost."""
        ...

    def is_past(self) -> bool:
        """Tell whether all work before the mark is done; raises DeviceLost."""
        ...


class Stream(Protocol):
    """Work in order. Streams run concurrently; each is used by one thread at a time."""

    def do(self, what: str, work: Callable[[], object], *, products: bool = False) -> None:
        """Put work on the stream; `what` is for logs. Raises DeviceFull, DeviceLost.

        Work outside of graphs that multiplies matrices says so by `products`: it is put there while nobody captures or
        trims, because these free the workspaces of all threads.
        """
        ...

    def wait(self, mark: StreamMark) -> None:
        """Let all later work of this stream wait for a mark of another stream."""
        ...

    def mark(self) -> StreamMark:
        """Set a mark behind all work that was put on the stream so far."""
        ...


class Graph(Protocol):
    """Work that was captured once and is repeated by one launch."""

    @property
    def outputs(self) -> Any:
        """The tensors that the work returned; every replay overwrites them."""
        ...

    def replay(self) -> None:
        """Repeat the work, on the stream that it was captured on, from within `Stream.do`."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of device memory: all, those that are free, those that we reserve now, and the most that we reserved.

    The driver and other processes hold the rest.
    """

    total: int
    free: int
    reserved: int
    peak: int

    @property
    def elsewhere(self) -> int:
        """Bytes that the driver's context, loaded kernels and other processes hold."""
        return self.total - self.free - self.reserved


class Driver(Protocol):
    """One GPU. Called from several threads, but only one thread at a time takes memory or captures graphs."""

    device: torch.device
    measured_as: Hashable
    """What tells its measurings from those of other drivers."""

    def usage(self) -> Usage:
        """Return how the device memory is used now."""
        ...

    def limit(self, size: int) -> None:
        """Let no more than `size` bytes of device memory be reserved from now on; calls beyond raise DeviceFull."""
        ...

    def device_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes on the device, (size,) uint8; raises DeviceFull."""
        ...

    def pinned_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes of pinned host memory, (size,) uint8, which the device can read; raises DeviceFull."""
        ...

    def stream(self, name: str) -> Stream:
        """Make a stream."""
        ...

    def capture(self, what: str, stream: Stream, work: Callable[[], Any]) -> Graph:
        """Capture `work` as a graph; its tensors must keep their addresses. `work` also runs a few times to warm up.

        Graphs of one stream share the memory of their intermediate results; it grows least if the largest graph comes
        first. No garbage may be collected meanwhile (`uncollected`). Raises DeviceFull, DeviceLost.
        """
        ...

    def trim(self) -> None:
        """Free memory that is kept for later and that nothing uses, workspaces of libraries included."""
        ...


_alone = threading.RLock()
"""Held while a graph is captured and while garbage is collected, for all lines: they share one collector."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the block. Garbage may hold graphs or pinned memory; a capture forbids freeing them."""
    with _alone:
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was:
                gc.enable()


def give_back(driver: Driver) -> None:
    """Free the device memory that nothing uses. Objects in use when an error came may be in reference cycles."""
    with _alone:
        gc.collect()
        driver.trim()
