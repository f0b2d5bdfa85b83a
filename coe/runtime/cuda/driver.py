"""The few things that the device needs of a GPU. `torch_driver` does them with CUDA; tests do them on the CPU, later.

Work is put on streams and done in the order of its stream, some time after `do` has returned. A mark stands at a place
of a stream: whoever must not be early waits for it, a stream without anybody being held up, a thread by standing still.
Memory is given back when its tensor dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A place in a stream."""

    def wait(self) -> None:
        """Hold up the calling thread until all that stands before is done; raises DeviceLost."""
        ...

    def is_past(self) -> bool:
        """Tell whether all that stands before is done; raises DeviceLost."""
        ...


class Stream(Protocol):
    """Work in order. Streams run beside each other; one is used by one thread at a time."""

    def do(self, what: str, work: Callable[[], object]) -> None:
        """Put work on the stream; `what` is for logs. Raises DeviceFull, DeviceLost."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let what comes from now on wait for a mark of another stream."""
        ...

    def mark(self) -> Mark:
        """Set a mark behind all that was put on the stream so far."""
        ...


class Graph(Protocol):
    """Work that was captured once and is done again in one go."""

    @property
    def outputs(self) -> Any:
        """What the work returned: tensors that every replay overwrites."""
        ...

    def replay(self) -> None:
        """Do it again, on the stream that it was captured on, from within `Stream.do`."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of device memory: what there is, what nobody has, what we reserved, and the most that we did.

    The driver and other processes have the rest.
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
    """One GPU. Called from several threads; memory is taken and graphs are captured by one at a time."""

    device: torch.device

    def usage(self) -> Usage:
        """Return how the device memory is used now."""
        ...

    def limit(self, size: int) -> None:
        """Let no more than `size` bytes of device memory be reserved from now on: DeviceFull comes instead."""
        ...

    def device_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes on the device, (size,) uint8; raises DeviceFull."""
        ...

    def pinned_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes of the host that the device reads by itself, (size,) uint8; raises DeviceFull."""
        ...

    def stream(self, name: str) -> Stream:
        """Make a stream."""
        ...

    def capture(self, what: str, stream: Stream, work: Callable[[], Any]) -> Graph:
        """Capture what `work` does on tensors that stay where they are. It is also done some times, for nothing.

        Graphs of one stream share the memory of what they compute on the way; it grows least if the largest comes
        first. No garbage may be collected meanwhile (`garbage.uncollected`). Raises DeviceFull, DeviceLost.
        """
        ...

    def trim(self) -> None:
        """Give back memory that is kept for later and that nothing uses."""
        ...
