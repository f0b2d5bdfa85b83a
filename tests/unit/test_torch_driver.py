"""What can be told of the real driver without a GPU: what torch's errors mean, whose a stream is, what captures."""

import contextlib
import copy
import functools
import gc
import itertools
import signal
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coe.errors import CoeError, ConfigError, DeviceFull, DeviceLost
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.torch_driver import LAUNCHING, TorchGraph, TorchStream, on_capture_thread


def cuda(code, text):
    error = torch.AcceleratorError(f"CUDA error: {text}\nCompile with ...")
    error.error_code = code
    return error


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
ENDED = cuda(901, "operation failed due to a previous error during capture")


@pytest.mark.parametrize(
    ("errors", "kind", "said"),
    [
        ([FULL], DeviceFull, "Tried to allocate 2.00 GiB.$"),
        ([cuda(2, "out of memory")], DeviceFull, "out of memory$"),
        ([RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")], DeviceFull, "CUBLAS"),
        ([RuntimeError("FIND was unable to find an engine to execute this computation")], DeviceFull, "an engine"),
        ([RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`")], DeviceFull, "CUBLAS"),
        ([RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")], DeviceFull, "cuDNN"),
        ([RuntimeError("CUDA driver error: out of memory")], DeviceFull, "driver error"),
        ([RuntimeError("CUDA driver error: an illegal instruction was encountered")], DeviceLost, "illegal"),
        ([RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")], DeviceLost, "EXECUTION_FAILED"),
        ([FULL, ENDED], DeviceFull, "Tried to allocate"),
        ([cuda(900, "not permitted when stream is capturing"), ENDED], DeviceLost, r"as a graph.*not permitted"),
        ([cuda(719, "unspecified launch failure")], DeviceLost, "launch failure$"),
        ([RuntimeError("shapes differ")], RuntimeError, "shapes differ"),
    ],
)
def test_an_error_of_torch_is_one_of_ours(errors, kind, said):
    """Each of `errors` is raised while the one before is on its way."""

    def fail(rest):
        try:
            raise rest[0]
        finally:
            if rest[1:]:
                fail(rest[1:])

    with pytest.raises(kind, match=said), torch_driver.errors():
        fail(errors)


@pytest.mark.parametrize(
    ("error", "is_on_thread"), [(FULL, False), (cuda(719, "unspecified launch failure"), False), (FULL, True)]
)
def test_an_error_that_was_dealt_with_keeps_nothing_of_what_failed(error, is_on_thread):
    """A failed batch's tensors are what the next try needs the memory of; nobody collects garbage in between."""
    kept = []

    def forward():
        tensor = np.zeros(8)
        kept.append(weakref.ref(tensor))
        raise copy.copy(error)

    on_capture_thread(lambda: None, searches=False)
    gc.disable()
    try:
        with contextlib.suppress(CoeError, torch.OutOfMemoryError):
            if is_on_thread:
                on_capture_thread(forward, searches=False)
            else:
                with torch_driver.errors():
                    forward()
        # The next work drops what the thread still holds of the last.
        on_capture_thread(lambda: None, searches=False)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_no_two_streams_that_live_are_one(monkeypatch):
    turn = itertools.count()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(turn) % 32))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(turn)))
    device = torch.device("cuda", 0)
    kept = [TorchStream(f"{number}", device) for number in range(3)]
    for _ in range(100):
        TorchStream("probe", device)
        kept[0] = TorchStream("another", device)
        assert len({stream.raw.cuda_stream for stream in kept}) == 3
    kept += [TorchStream("more", device) for _ in range(29)]
    with pytest.raises(DeviceFull, match="32 streams"):
        TorchStream("one too many", device)


def test_a_stream_waits_for_the_mark_of_another_and_its_graphs_share_memory_until_none_is_left(monkeypatch):
    turn = itertools.count()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(turn)))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(turn)))
    stream = TorchStream("one", torch.device("cuda", 0))
    stream.raw.wait_event = (waited := []).append
    stream.wait(SimpleNamespace(event="event"))
    assert waited == ["event"]
    first = stream.pool()
    graphs = [TorchGraph(None, None) for _ in range(2)]
    for graph in graphs:
        stream.captured(graph)
    assert stream.pool() == first
    del graph
    graphs.pop()
    assert stream.pool() == first
    graphs.pop()
    assert stream.pool() != first


PRIVATE = CLEAR, END, RELEASE = "_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"


class Cuda(SimpleNamespace):
    """In the place of `torch.cuda`: notes in `log` what is asked of it; a capture ends with the errors `ends`."""

    def __init__(self, monkeypatch, allocator="native"):
        super().__init__(log=[], ends=[], CUDAGraph=SimpleNamespace)
        self.current_device = lambda: 0
        self.synchronize = lambda device=None: None
        self.get_allocator_backend = lambda: allocator
        self.current_stream = lambda device=None: "default"
        self.device = lambda device: self.inside(str(device))
        self.stream = lambda raw: self.inside("stream")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
        monkeypatch.setattr(torch, "cuda", self)
        for name in PRIVATE:
            monkeypatch.setattr(torch._C, name, functools.partial(self.note, name), raising=False)

    def note(self, *words):
        self.log.append(words)

    @contextlib.contextmanager
    def inside(self, what):
        self.log.append(what)
        yield
        self.log.append(f"end of {what}")

    @contextlib.contextmanager
    def graph(self, graph, *, pool, stream, capture_error_mode):
        self.log.append(f"capture into {pool}, {capture_error_mode}")
        try:
            yield
        finally:
            if self.ends:
                raise self.ends.pop()
            self.log.append("end of capture")

    def new_stream(self):
        stream = TorchStream.__new__(TorchStream)
        stream.raw = SimpleNamespace(
            wait_stream=lambda other: self.log.append(f"wait for {other}"),
            synchronize=lambda: self.log.append("synchronize"),
        )
        stream.pool = lambda: (0, 7)
        stream.captured = lambda graph: self.log.append("captured")
        return stream


WARM_UP = ["stream", "inference work", "end of stream"]


def test_a_graph_is_captured_step_by_step(monkeypatch):
    """Its stream waits for the memory's; work warms up and is done; libraries take their workspaces in the graph."""
    cuda = Cuda(monkeypatch)
    driver, stream = torch_driver.TorchDriver(), cuda.new_stream()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    frees = []

    def work():
        cuda.log.append("inference work" if torch.is_inference_mode_enabled() else "work")
        thread = threading.Thread(target=lambda: frees.append(LAUNCHING.acquire(blocking=False)))
        thread.start()
        thread.join()

    driver.capture("capture k x1", stream, work)
    assert frees == 3 * [False], "no other thread captures or trims meanwhile"
    assert cuda.log == [
        *("cuda:0", (CLEAR,), "wait for default", *WARM_UP, *WARM_UP, "synchronize", (CLEAR,), "stream"),
        "capture into (0, 7), thread_local",
        "inference work",
        "end of capture",
        "end of stream",
        (CLEAR,),
        "captured",
        (CLEAR,),
        "end of cuda:0",
    ]


@pytest.mark.parametrize("is_ended", [True, False])
def test_after_a_capture_that_cannot_be_ended_nothing_records_into_its_pool(monkeypatch, is_ended):
    """A library got no memory inside: torch would refuse all later captures into the pool of the stream's graphs."""
    cuda = Cuda(monkeypatch)
    driver, calls = torch_driver.TorchDriver(), []
    cuda.ends += [] if is_ended else [ENDED]
    if is_ended:

        def end(*words):
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

        monkeypatch.setattr(torch._C, END, end)

    def work():
        calls.append(1)
        if len(calls) == 3:
            raise copy.copy(FULL)

    with pytest.raises(DeviceFull):
        driver.capture("capture k x1", cuda.new_stream(), work)
    ends = [entry for entry in cuda.log if isinstance(entry, tuple) and entry != (CLEAR,)]
    assert ends == ([] if is_ended else [(END, 0, (0, 7)), (RELEASE, 0, (0, 7))])


def test_an_allocator_that_does_not_count_what_graphs_hold_is_refused(monkeypatch):
    Cuda(monkeypatch, "cudaMallocAsync")
    with pytest.raises(ConfigError, match="PYTORCH_CUDA_ALLOC_CONF"):
        torch_driver.TorchDriver()


def test_kernels_are_searched_for_before_a_capture_alone_only_if_that_is_set_and_on_one_thread(monkeypatch):
    cuda, names = Cuda(monkeypatch), []
    for search in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", not search)
        driver, stream, seen = torch_driver.TorchDriver(search), cuda.new_stream(), []
        assert driver.measured_as == ("cuda", 0, search)

        def work(seen=seen):
            thread = threading.current_thread()
            seen.append((torch.backends.cudnn.benchmark, thread.name, thread.daemon, torch.get_num_threads()))

        callers = [threading.Thread(target=driver.capture, args=("capture k x1", stream, work)) for _ in range(2)]
        for caller in callers:
            caller.start()
            caller.join(60)
        # Two runs to warm up, then the run that is captured.
        assert [benchmark for benchmark, *_ in seen] == 2 * [search, search, False]
        assert {(is_daemon, threads) for *_, is_daemon, threads in seen} == {(True, 1)}, (
            "a capture that hangs does not hold up the interpreter's exit, and a thread that lives on keeps no team"
        )
        names.append({name for _, name, *_ in seen})
        assert torch.backends.cudnn.benchmark is not search

        def fails():
            raise StopIteration

        with pytest.raises(StopIteration):
            driver.capture("capture k x1", stream, fails)
        assert torch.backends.cudnn.benchmark is not search
    # With a search and without, captures have a thread each.
    assert [len(one) for one in names] == [1, 1]
    assert names[0] != names[1]


def registering(monkeypatch, status):
    """A driver whose CUDA answers `status` when memory is to be pinned; returns it and what was asked of CUDA."""
    asked = []
    cudart = SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: asked.append(("register", size)) or status,
        cudaHostUnregister=lambda address: asked.append(("unregister",)),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    driver = torch_driver.TorchDriver.__new__(torch_driver.TorchDriver)
    driver.device = torch.device("cuda", 0)
    return driver, asked


def test_memory_is_pinned_in_its_own_size_and_where_it_cannot_be_torch_pins_its_own(monkeypatch):
    driver, asked = registering(monkeypatch, 0)
    memory = driver.pinned_memory(5_000_000)
    memory[:] = 7
    view = memory[100:]
    del memory
    gc.collect()
    assert asked == [("register", 5_000_000)]
    assert (view == 7).all()
    del view
    gc.collect()
    assert asked == [("register", 5_000_000), ("unregister",)]
    driver, asked = registering(monkeypatch, 801)
    made, plain = [], torch.empty

    def empty(*shape, pin_memory=False, **options):
        made.append(pin_memory)
        return plain(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty)
    assert driver.pinned_memory(4096).shape == (4096,)
    assert (asked, made) == ([("register", 4096)], [True])


@pytest.mark.parametrize(
    ("status", "free", "said"),
    [
        (2, 1 << 40, r"CUDA error 2\)$"),  # where memory is short, torch is not asked: it would round up
        (801, 1 << 40, "CUDA error 801.*nor does torch"),
        (801, 7 << 20, r"does not pin 5\.0 MiB"),  # it rounds 5 to 8 MiB, and asking for too much ends the process
    ],
)
def test_memory_that_nobody_pins_is_full(monkeypatch, status, free, said):
    driver, _ = registering(monkeypatch, status)
    monkeypatch.setattr(torch_driver.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))

    def empty(*shape, **options):
        assert free > 8 << 20, "asked"
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(DeviceFull, match=said):
        driver.pinned_memory(5 << 20)


def test_trimming_frees_the_workspaces_of_cublas_and_then_what_the_allocator_keeps(monkeypatch):
    """Else the next capture would free workspaces that others left, and a measuring would count them."""
    done = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("workspaces"), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("cache"))
    torch_driver.TorchDriver.__new__(torch_driver.TorchDriver).trim()
    assert done == ["workspaces", "cache"]


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
@pytest.mark.parametrize("name", PRIVATE)
def test_torch_has_the_private_calls(name):
    """Nothing public does it. If a later torch lacks one, `torch_driver` needs another way, and pyproject a bound."""
    assert callable(getattr(torch._C, name))


# Captures run on a thread that lives on; its caller keeps its locks until they end, and errors keep nothing alive


def test_an_interrupt_comes_after_the_capture():
    log = []
    main = threading.get_ident()

    def capture():
        while sys._current_frames()[main].f_code.co_name != "wait":
            time.sleep(0.001)
        # To the caller's thread: a signal to this one would not wake that before the capture has ended.
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.3)
        log.append("captured")

    with pytest.raises(KeyboardInterrupt):
        on_capture_thread(capture, searches=False)
    assert log == ["captured"]
