"""Streams of a GPU, marks in them and graphs on them, by way of torch.

Work is put on streams and done in the order of its stream, some time after `do` has returned. A mark is a position in a
stream. A stream or a thread that must not run early waits for the mark; a waiting stream holds up no thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from coe.errors import DeviceFull
from coe.runtime.cuda.torch_errors import errors

_STREAMS = 32
"""How many streams torch has; it hands them out in turn, again and again."""

LAUNCHING = threading.RLock()
"""Held while a graph is captured, for all lines: meanwhile no other graph is captured and no memory is given back."""


class TorchMark:
    """A position in a stream: an event behind the work that was put there."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        with errors():
            # Blocking: a thread that waits must not take a core from those that decode.
            self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self.event.record(stream)

    def wait(self) -> None:
        """Block the calling thread until all work before the mark is done; raises DeviceLost."""
        with errors():
            self.event.synchronize()

    def is_past(self) -> bool:
        """Tell whether all work before the mark is done; raises DeviceLost."""
        with errors():
            return bool(self.event.query())  # type: ignore[no-untyped-call]


class TorchStream:
    """Work in order, on a CUDA stream that no other `TorchStream` uses. Raises DeviceFull if none is left.

    Streams run concurrently; each is used by one thread at a time.
    """

    _live: ClassVar[weakref.WeakValueDictionary[int, TorchStream]] = weakref.WeakValueDictionary()

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._graphs: weakref.WeakSet[TorchGraph] = weakref.WeakSet()
        self._pool = torch.cuda.graph_pool_handle()
        with LAUNCHING:
            for _ in range(_STREAMS):
                self.raw = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                if self.raw.cuda_stream not in self._live:
                    break
            else:
                # On a shared stream, one thread's copy could end up in the graph that another thread captures.
                raise DeviceFull(f"all of torch's {_STREAMS} streams are in use")
            self._live[self.raw.cuda_stream] = self

    def pool(self) -> torch.cuda._POOL_HANDLE:
        """Return the memory pool of the stream's graphs; torch wants a new pool once all its graphs are gone."""
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def captured(self, graph: TorchGraph) -> None:
        """Remember a graph for as long as it lives."""
        self._graphs.add(graph)

    def do(self, what: str, work: Callable[[], object]) -> None:
        """Put work on the stream; `what` is for logs. Raises DeviceFull, DeviceLost.

        It multiplies no matrices: captures and trims free the workspaces that cuBLAS would work in.
        """
        with errors(), torch.cuda.stream(self.raw), torch.inference_mode():
            work()

    def wait(self, mark: TorchMark) -> None:
        """Let all later work of this stream wait for a mark of another stream."""
        with errors():
            self.raw.wait_event(mark.event)

    def mark(self) -> TorchMark:
        """Set a mark behind all work that was put on the stream so far."""
        return TorchMark(self.raw)

    def finish(self) -> None:
        """Block the calling thread until all work is done, which takes no memory, as a mark does; raises DeviceLost."""
        with errors():
            self.raw.synchronize()


class TorchGraph:
    """Work that was captured once and is repeated by one launch; every replay overwrites its `outputs`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Any) -> None:
        self._graph, self.outputs = graph, outputs

    def replay(self) -> None:
        """Repeat the work, on the stream that it was captured on, from within `TorchStream.do`."""
        self._graph.replay()
