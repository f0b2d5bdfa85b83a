"""The GPU itself, by way of torch. Nothing else of the package calls `torch.cuda`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from coe.config import format_bytes
from coe.errors import ConfigError, DeviceFull, DeviceLost
from coe.runtime.cuda.driver import Mark, Stream, Usage

_WARM_UPS = 2
"""How often work is done before it is captured: libraries choose their kernels and take their workspaces then."""


def is_there() -> bool:
    """Tell whether this machine has a GPU that torch can use."""
    return torch.cuda.is_available()


def driver() -> TorchDriver:
    """Return this machine's first GPU; raises ConfigError if there is none that torch can use."""
    if not is_there():
        raise ConfigError(
            "there is no GPU that torch can use here (torch.cuda.is_available() says so); use --executors cpu=1"
        )
    return TorchDriver()


@contextmanager
def _errors() -> Iterator[None]:
    """Turn torch's errors into ours."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceFull(str(error).split("\n", 1)[0]) from error
    except RuntimeError as error:
        # After an error of the device every further call gives one: nothing on it can be used again.
        if isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error):
            raise DeviceLost(str(error).split("\n", 1)[0]) from error
        raise


class TorchMark:
    """An event behind what was put on a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        with _errors():
            # Blocking: a thread that waits must not take a core from those that decode.
            self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self.event.record(stream)

    def wait(self) -> None:
        """Hold up the calling thread until the event has happened."""
        with _errors():
            self.event.synchronize()

    def is_past(self) -> bool:
        """Tell whether the event has happened."""
        with _errors():
            return bool(self.event.query())  # type: ignore[no-untyped-call]


class TorchStream:
    """A stream of CUDA."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.raw = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.graphs = torch.cuda.graph_pool_handle()

    def do(self, what: str, work: Callable[[], object]) -> None:
        """Launch work on the stream."""
        with _errors(), torch.cuda.stream(self.raw), torch.inference_mode():
            work()

    def wait(self, mark: Mark) -> None:
        """Let the stream wait for an event."""
        assert isinstance(mark, TorchMark), "a mark of another driver"
        with _errors():
            self.raw.wait_event(mark.event)

    def mark(self) -> TorchMark:
        """Record an event."""
        return TorchMark(self.raw)


class TorchGraph:
    """A CUDA graph, with what its work returned."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Any) -> None:
        self._graph, self.outputs = graph, outputs

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()


class TorchDriver:
    """One GPU, as torch's current device."""

    def __init__(self) -> None:
        with _errors():
            self.device = torch.device("cuda", torch.cuda.current_device())
            # Full precision is what doubtful findings are believed in: 10 bits of mantissa are not.
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.cuda.synchronize()

    def usage(self) -> Usage:
        """Return how the device memory is used now."""
        with _errors():
            free, total = torch.cuda.mem_get_info(self.device)
            peak = torch.cuda.max_memory_reserved(self.device)
            return Usage(total, free, torch.cuda.memory_reserved(self.device), peak)

    def limit(self, size: int) -> None:
        """Let torch's allocator reserve no more than `size` bytes."""
        with _errors():
            share = size / torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share), self.device)

    def device_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes of the device."""
        with _errors():
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def pinned_memory(self, size: int) -> torch.Tensor:
        """Return `size` pinned bytes of the host."""
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            said = str(error).split("\n", 1)[0]
            raise DeviceFull(f"the system does not pin {format_bytes(size)} of host memory ({said})") from error

    def stream(self, name: str) -> TorchStream:
        """Make a stream."""
        with _errors():
            return TorchStream(name, self.device)

    def capture(self, what: str, stream: Stream, work: Callable[[], Any]) -> TorchGraph:
        """Warm work up and capture it. Other threads may copy and run meanwhile, but not allocate or capture."""
        assert isinstance(stream, TorchStream), "a stream of another driver"
        with _errors():
            for _ in range(_WARM_UPS):
                stream.do(what, work)
            stream.mark().wait()
            graph = torch.cuda.CUDAGraph()
            with (
                torch.inference_mode(),
                torch.cuda.graph(graph, pool=stream.graphs, stream=stream.raw, capture_error_mode="thread_local"),
            ):
                outputs = work()
            return TorchGraph(graph, outputs)

    def trim(self) -> None:
        """Give back what the allocator keeps."""
        with _errors():
            torch.cuda.empty_cache()
