"""The few operations that the device needs of a GPU, by way of torch; tests fake them on the CPU.

Memory is freed when its tensor dies. A driver is called from several threads, but only one thread at a time takes
memory or captures graphs. No other module that a line runs calls `torch.cuda`; benchmarks read peaks there.

A process captures graphs on two threads, one for captures with a search for kernels, one for those without: cuDNN keeps
what it chose for each thread. On a second thread it would search again, and on a common thread a capture with a search
would find the choice of a capture without. The threads live on, so they keep no team of OpenMP.
"""

from __future__ import annotations

import mmap
import os
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import psutil
import torch

from coe.config import format_bytes
from coe.errors import CoeError, ConfigError, DeviceFull, DeviceLost, first_line
from coe.helpers.system import private_memory
from coe.runtime.inputs import Workers
from coe.runtime.processor import bound_threads

NO_MEMORY = 2
"""The error code of CUDA for too little memory, outside the allocator of torch, too."""
_CAPTURE_ERRORS = range(900, 909)
"""All of CUDA's error codes for a capture."""
_LIBRARIES_FULL = (
    "ALLOC(ATION)?_FAILED|STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)|driver error: out of memory|unable to find an engine"
)
_OF_CUDA = "CUDA (driver )?error|STATUS_EXECUTION_FAILED"
"""Words of errors that have neither a class nor a code; see `_has_words`.

Libraries also say that they are not initialized, or speak of an internal error, where they got no memory."""


@contextmanager
def errors() -> Iterator[None]:
    """Turn torch's errors into ours."""
    try:
        yield
    except RuntimeError as error:
        if (meant := _meant(error)) is None:
            raise
        # Python 3.12 and later: this frame leads to that of contextlib, which holds the error: a cycle, as below.
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        try:
            raise meant from error
        finally:
            # Else the error lies in a frame that its own traceback holds: a cycle that keeps the failed call's tensors.
            del meant


def _meant(error: RuntimeError) -> CoeError | None:
    # A capture that ends early raises an error about that, too; the cause is further up the chain.
    chain: list[BaseException] = [error]
    while (before := chain[-1].__context__) is not None:
        chain.append(before)
    for link in chain:
        if _is_full(link):
            return DeviceFull(first_line(link))
    if any(_code(link) in _CAPTURE_ERRORS for link in chain):
        # The device is lost all the same: torch's allocator believes that the capture still goes on.
        return DeviceLost(
            f"a batch cannot be captured as a graph; its kind's `forward` must not make the host wait "
            f"({first_line(chain[-1])})"
        )
    # After an error of the device every further call fails: nothing on it can be used again.
    if any(_is_device_error(link) for link in chain):
        return DeviceLost(first_line(error))
    return None


def _is_full(error: BaseException) -> bool:
    """Tell whether an error says that the device has no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or _code(error) == NO_MEMORY or _has_words(error, _LIBRARIES_FULL)


def _is_device_error(error: BaseException) -> bool:
    """Tell whether an error is one of the device."""
    return isinstance(error, torch.AcceleratorError) or _has_words(error, _OF_CUDA)


def _has_words(error: BaseException, words: str) -> bool:
    """Tell whether the message of an error has words that match a pattern."""
    # Torch reports an error of cuBLAS or cuDNN as a `RuntimeError` without a code: only its message says what it is.
    return re.search(words, str(error)) is not None


def _code(error: BaseException) -> int | None:
    return getattr(error, "error_code", None) if isinstance(error, torch.AcceleratorError) else None


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


T = TypeVar("T")

_starting = threading.Lock()
_threads: dict[bool, Workers] = {}


def on_capture_thread(work: Callable[[], T], *, searches: bool) -> T:
    """Do `work` on one of the threads, and return what it returns, or raise what it raises.

    An interrupt is raised after the work has ended: until then the caller's locks are needed.
    """
    results: list[T] = []
    raised: list[BaseException] = []

    def noted() -> None:
        try:
            results.append(work())
        except BaseException as error:
            raised.append(error)

    future = _thread(searches).submit(noted)
    try:
        future.result()
    finally:
        wait([future])
    if raised:
        # Not by the future: a frame of the traceback would hold it, a cycle that keeps the failed work's tensors.
        raise raised.pop()
    return results.pop()


def _thread(searches: bool) -> Workers:
    with _starting:
        if searches not in _threads:
            workers = _threads[searches] = Workers(1, f"coe-capture{'-search' if searches else ''}")
            for thread in workers.threads:
                thread.start()
            workers.submit(lambda: bound_threads(1))
        return _threads[searches]


_WARM_UPS = 2
"""How often work runs before it is captured: libraries then choose their kernels and take their workspaces."""
_ADVICE = [getattr(mmap, name) for name in ("MADV_HUGEPAGE", "MADV_DONTFORK") if hasattr(mmap, name)]
"""For pinned memory: gigabytes are pinned sooner in large pages, and a forked child must not make the pages move."""


def is_there() -> bool:
    """Tell whether this machine has a GPU that torch can use; no context is made."""
    return torch.cuda.is_available()


def why_not_there() -> str:
    """Return why torch can use no GPU here, as the end of a sentence."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return f"this torch, {torch.__version__}, is a CPU build: install a CUDA build"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is '{visible}', which hides the others)"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:
        return first_line(error).partition(". ")[0] + hidden
    return f"the driver shows none{hidden}"


def driver(*, search_kernels: bool = True, index: int | None = None) -> TorchDriver:
    """Return a GPU by its number, or torch's current one; see `TorchDriver`; raises ConfigError if it is not there."""
    if not is_there():
        raise ConfigError(
            f"there is no GPU that torch can use here: {why_not_there()}; correct that, or use --executors cpu=1 "
            "(--device cpu of coe-bench switch)"
        )
    if index is not None and index >= (there := torch.cuda.device_count()):
        raise ConfigError(f"there is no cuda:{index} here; torch can use {there}: cuda:0 to cuda:{there - 1}")
    return TorchDriver(search_kernels, index)


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


class TorchDriver:
    """One GPU: torch's current device, or that with a number.

    With `search_kernels` cuDNN runs all its kernels for each graph, to find the quickest, before it is captured.
    """

    def __init__(self, search_kernels: bool = True, index: int | None = None) -> None:
        self._search_kernels = search_kernels
        if (allocator := torch.cuda.get_allocator_backend()) != "native":
            raise ConfigError(
                f"torch's allocator is '{allocator}' here, which does not count what graphs hold; leave `backend` out "
                "of PYTORCH_CUDA_ALLOC_CONF"
            )
        with errors():
            self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
            # Doubtful findings are decided in full precision: TF32, with 10 bits of mantissa, is not.
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = False
            # What tells its measurings from those of other drivers.
            self.measured_as: Hashable = ("cuda", self.device.index, search_kernels)
            torch.cuda.synchronize(self.device)

    def usage(self) -> Usage:
        """Return how the device memory is used now."""
        with errors():
            free, total = torch.cuda.mem_get_info(self.device)
            peak = torch.cuda.max_memory_reserved(self.device)
            return Usage(total, free, torch.cuda.memory_reserved(self.device), peak)

    def limit(self, size: int) -> None:
        """Let torch's allocator reserve no more than `size` bytes from now on; calls beyond raise DeviceFull."""
        with errors():
            share = size / torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share), self.device)

    def device_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes on the device, (size,) uint8; raises DeviceFull."""
        with errors():
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def pinned_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes of pinned host memory, (size,) uint8, which the device can read; raises DeviceFull.

        Not by torch's own pinned memory, which is rounded up to a power of two: 17 GiB would take 32.
        """
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        try:
            mapping = private_memory(max(1, size))
        except OSError as error:
            raise DeviceFull(f"the system does not give {format_bytes(size)} of host memory ({error})") from None
        for advice in _ADVICE:
            with suppress(OSError):
                mapping.madvise(advice)
        memory = np.frombuffer(mapping, np.uint8)
        # On this device: else the call would make a context on the first GPU, which nobody may use.
        with torch.cuda.device(self.device):
            # 1: for all threads and contexts.
            status = int(cudart.cudaHostRegister(memory.ctypes.data, len(memory), 1))
        if status != 0:
            with suppress(RuntimeError):
                # The error waits for the next launch to report it: for this one.
                torch.ones(1, device=self.device)
            del memory
            return _pinned_by_torch(size, status)

        def unregister(address: int, _: object) -> None:
            with torch.cuda.device(self.device):
                cudart.cudaHostUnregister(address)

        # The finalizer holds the mapping, so that the memory is unregistered before it is unmapped.
        weakref.finalize(memory, unregister, memory.ctypes.data, mapping)
        return torch.from_numpy(memory)[:size]

    def stream(self, name: str) -> TorchStream:
        """Make a stream."""
        with errors():
            return TorchStream(name, self.device)

    def capture(self, what: str, stream: TorchStream, work: Callable[[], Any]) -> TorchGraph:
        """Capture `work` as a graph; its tensors must keep their addresses. `work` also runs a few times to warm up.

        Graphs of one stream share the memory of their intermediate results; it grows least if the largest graph comes
        first. No garbage may be collected meanwhile (`uncollected`). Other threads may copy and run, but not allocate
        or capture. Raises DeviceFull, DeviceLost.
        """
        return on_capture_thread(lambda: self._captured(what, stream, work), searches=self._search_kernels)

    def _captured(self, what: str, stream: TorchStream, work: Callable[[], Any]) -> TorchGraph:
        with LAUNCHING, errors(), torch.cuda.device(self.device), _workspaces():
            # The tensors that the work reads may have been made on the default stream.
            stream.raw.wait_stream(torch.cuda.current_stream())
            with _searching(self._search_kernels):
                for _ in range(_WARM_UPS):
                    stream.do(what, work)
            stream.finish()
            graph, pool = torch.cuda.CUDAGraph(), stream.pool()
            with (
                _workspaces(),
                # A search inside a capture, because a kernel got no memory, would end the capture and lose the device.
                _searching(False),
                torch.inference_mode(),
                self._recording(pool),
                # This makes the former stream current again, even if the capture cannot be ended.
                torch.cuda.stream(stream.raw),
                torch.cuda.graph(graph, pool=pool, stream=stream.raw, capture_error_mode="thread_local"),
            ):
                outputs = work()
            captured = TorchGraph(graph, outputs)
            stream.captured(captured)
            return captured

    @contextmanager
    def _recording(self, pool: Any) -> Iterator[None]:
        """End the recording into a pool by a capture that cannot be ended: torch goes on, and refuses the next one."""
        try:
            yield
        except RuntimeError:
            # A capture that failed and was ended records no more: the first call then raises.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.device.index, pool)
                torch._C._cuda_releasePool(self.device.index, pool)
            raise

    def trim(self) -> None:
        """Free the memory that torch's allocator keeps, and the workspaces of cuBLAS, which it takes again as needed.

        Work of others in the process may have left some; the next capture would free them, in the midst of a measuring.
        """
        with LAUNCHING, errors():
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()


def _pinned_by_torch(size: int, status: int) -> torch.Tensor:
    """Return `size` bytes of torch's own pinned memory: not all systems can pin memory that they have given out."""
    # torch rounds up to a power of two. Raises DeviceFull if that is not there.
    reason = f"the system does not pin {format_bytes(size)} of host memory (CUDA error {status})"
    rounded = 1 << max(0, size - 1).bit_length()
    if status == NO_MEMORY or rounded > psutil.virtual_memory().available:
        raise DeviceFull(reason)
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise DeviceFull(f"{reason}, nor does torch ({first_line(error)})") from None


@contextmanager
def _searching(search: bool) -> Iterator[None]:
    """Let cuDNN search for the quickest kernels, or not, in whatever way the process has set it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = search
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _workspaces() -> Iterator[None]:
    """Let cuBLAS take its workspace in the graph's memory; else it would keep a workspace for each stream for good."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
