"""Measures a switch on the CPU, and the least time that this machine could take for it.

All operations on an expert are timed in turn, many times, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import onnx
import psutil

from coe import config
from coe.board import rules
from coe.core import Expert
from coe.helpers import surroundings
from coe.helpers.system import forget_file, open_descriptors
from coe.lab.eager_baseline import constructed
from coe.lab.workloads.synthetic import black, in_variant, prepare, synthetic_board
from coe.runtime.blob import Blob, Buffers
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda.collector import give_back
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.cuda.pinned_memory import passing_bytes
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.processor import on_fresh_thread
from coe.runtime.reading import Weights, weights
from coe.runtime.slot import Slot
from coe.store import kinds
from coe.store.blob_format import MODEL, PAGE, Variant, padded
from coe.store.kinds import ModuleKind
from coe.store.store import Store


def whole_model(weights: Weights) -> bytes:
    """Return the ONNX model of a blob in `int8` with all its weights in it; raises StoreError."""
    blob = weights.read(Buffers())
    model = onnx.load_from_string(blob.tensors[MODEL].numpy().tobytes())
    for tensor in model.graph.initializer:
        if tensor.name in blob.tensors:
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = blob.tensors[tensor.name].numpy().tobytes()
    blob.release()
    return bytes(model.SerializeToString())


def library_session(model: bytes, threads: int) -> Any:
    """Open a model as an `onnxruntime.InferenceSession` with the library's defaults, but for the number of threads."""
    surroundings.quiet_onnxruntime()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, slots=True)
class Switch:
    """Medians of one kind in one variant, in seconds; None where the system would not forget the file.

    `read_*` is the plain read of the same file into memory that is reused, for `int8` with the session that the library
    opens by itself; `load_*` is a load by the engine, checksums included, until the expert can run. `*_cpu_s` is the
    processor time of these. `ready_s` is the time from memory until it can run, with conversion if needed;
    `copy_s` is a plain copy of as many bytes as the weights have in fp32. `eager_s` is the eager baseline, from a
    file in the system's cache: construct, `torch.load`, `load_state_dict`.
    """

    kind: str
    variant: str
    bytes: int
    fp32_bytes: int
    read_warm_s: float
    load_warm_s: float
    read_warm_cpu_s: float
    load_warm_cpu_s: float
    read_cold_s: float | None
    load_cold_s: float | None
    ready_s: float
    copy_s: float
    eager_s: float


def on_cpu(
    work: Path,
    kind: str,
    input_size: int,
    variants: Sequence[Variant],
    repeats: int,
    threads: int,
    say: Callable[[str], None],
) -> list[Switch]:
    """Measure a kind on experts of random weights in `work`, as they were trained and in each variant.

    Raises ConfigError for a kind without a skeleton, or if a variant cannot be prepared.
    """
    board, store = synthetic_board(work, kind=kind, experts=2, input_size=input_size, seed=0)
    prepare(board, store, variants, say)
    experts = list(rules.load(board).experts.values())

    def measured() -> list[Switch]:
        import torch

        torch.set_num_threads(threads)
        # An expert that was never prepared runs from these files.
        trained = [replace(weights(store, e), path=store.path(e.weights), prepared=None) for e in experts]
        pairs = {"as trained": trained}
        pairs |= {variant: [weights(store, expert) for expert in in_variant(experts, variant)] for variant in variants}
        eager = _eager(store, experts[0])
        return [
            _opened(store, pair[0], threads, eager, trained[0].bytes, repeats)
            if name == "int8"
            else _switch(name, pair, eager, trained[0].bytes, repeats)
            for name, pair in pairs.items()
        ]

    return on_fresh_thread(measured)


class Stopwatch:
    """Times by name. The first time of each only warms up."""

    def __init__(self) -> None:
        self._all_s: dict[str, list[float]] = defaultdict(list)
        self._all_cpu_s: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, work: Callable[[], object]) -> None:
        """Do work once, and note how long it took."""
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        self._all_s[name].append(time.perf_counter() - began)
        self._all_cpu_s[name].append(time.process_time() - began_cpu)

    def medians_s(self, *, cpu: bool = False) -> dict[str, float]:
        """Return the median by name, without the first time; with `cpu` of the processor time of the whole process."""
        times = self._all_cpu_s if cpu else self._all_s
        return {name: statistics.median(times_s[1:]) for name, times_s in times.items() if len(times_s) > 1}


# On the CPU


def _switch(
    variant: str, pair: Sequence[Weights], eager: Callable[[], object], fp32_bytes: int, repeats: int
) -> Switch:
    """Time all operations on two experts in turn."""
    import torch

    buffers, clock = Buffers(), Stopwatch()
    slot = Slot(_module_kind(pair[0].expert), pair[0].expert, pair[0].structure())
    # A body that both have stays in memory, as on a line.
    body = pair[0].body.read(buffers) if pair[0].body is not None else None
    resident = [expert.read(buffers, body) for expert in pair]
    source, target = torch.zeros(fp32_bytes, dtype=torch.uint8), torch.zeros(fp32_bytes, dtype=torch.uint8)
    plain = memoryview(bytearray(pair[0].bytes))
    loaded: list[Blob] = []

    def read() -> None:
        _plain_read(pair[0].path, plain)

    def load() -> None:
        loaded.append(pair[0].read(buffers, body))
        slot.bind(loaded[-1])

    def timed(name: str, work: Callable[[], object]) -> None:
        clock(name, work)
        slot.unbind()
        while loaded:
            loaded.pop().release()

    for _ in range(repeats + 1):
        # The second read of a file that has just come from disk makes the system sort its pages again; it is not timed.
        read()
        timed("warm read", read)
        timed("warm load", load)
        timed("copy", lambda: target.copy_(source))
        slot.bind(resident[0])
        timed("ready", lambda: slot.bind(resident[1]))
        timed("eager", eager)
        for name, work in (("cold read", read), ("cold load", load)):
            if forget_file(pair[0].path):
                timed(name, work)
    return _figures(variant, pair[0], clock, fp32_bytes)


def _opened(
    store: Store, weights: Weights, threads: int, eager: Callable[[], object], fp32_bytes: int, repeats: int
) -> Switch:
    """Time all operations on an expert that the library opens as a session; in memory it is ready."""
    import torch

    clock, expert = Stopwatch(), weights.expert
    device = CpuDevice(store, {expert.kind: _module_kind(expert)}, threads)
    content = whole_model(weights)
    source, target = torch.zeros(fp32_bytes, dtype=torch.uint8), torch.zeros(fp32_bytes, dtype=torch.uint8)
    plain = memoryview(bytearray(weights.bytes))

    def read() -> None:
        _plain_read(weights.path, plain)
        library_session(content, threads)

    def timed(name: str, work: Callable[[], object]) -> None:
        clock(name, work)
        device.evict("pool", expert)

    for _ in range(repeats + 1):
        _plain_read(weights.path, plain)
        timed("warm read", read)
        timed("warm load", lambda: device.load("pool", expert))
        timed("copy", lambda: target.copy_(source))
        timed("ready", lambda: None)
        timed("eager", eager)
        for name, work in (("cold read", read), ("cold load", lambda: device.load("pool", expert))):
            if forget_file(weights.path):
                timed(name, work)
    return _figures("int8", weights, clock, fp32_bytes)


def _figures(variant: str, weights: Weights, clock: Stopwatch, fp32_bytes: int) -> Switch:
    median_s, median_cpu_s = clock.medians_s(), clock.medians_s(cpu=True)
    return Switch(
        kind=weights.expert.kind,
        variant=variant,
        bytes=weights.bytes,
        fp32_bytes=fp32_bytes,
        read_warm_s=median_s["warm read"],
        load_warm_s=median_s["warm load"],
        read_warm_cpu_s=median_cpu_s["warm read"],
        load_warm_cpu_s=median_cpu_s["warm load"],
        read_cold_s=median_s.get("cold read"),
        load_cold_s=median_s.get("cold load"),
        ready_s=median_s["ready"],
        copy_s=median_s["copy"],
        eager_s=median_s["eager"],
    )


def _plain_read(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(into):
            done += file.readinto(into[done:])


def _eager(store: Store, expert: Expert) -> Callable[[], object]:
    """Return a function that makes a model ready as a plain program does."""
    import torch

    kind, path = _module_kind(expert), store.root.parent / "eager.pt"
    torch.save(store.load(expert.weights), path)
    return lambda: constructed(kind, expert, torch.load(path, map_location="cpu", weights_only=True))


def _module_kind(expert: Expert) -> ModuleKind:
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, ModuleKind), "a synthetic board has module kinds only"
    return kind


BATCHES = (1, 4, 8, 16)
"""The sizes of batches on a GPU."""


@dataclass(frozen=True, slots=True)
class GpuSwitch:
    """Medians of one kind in one variant on a GPU, in seconds. `batch_s` and `switched_s` are by batch size.

    `read_s` reads, checks and copies a file that the system caches; `copy_s` copies from pinned memory; `plain_copy_s`
    is a plain pinned copy of as many `bytes`. `activate_s` makes a resident expert ready, `ready_s` an expert in pinned
    memory. `batch_s` is a batch on an expert that is active, `switched_s` a batch on another resident expert each time.
    A body that all experts have stays on the device.
    """

    kind: str
    variant: str
    bytes: int
    read_s: float
    copy_s: float
    plain_copy_s: float
    activate_s: float
    ready_s: float
    batch_s: dict[int, float]
    switched_s: dict[int, float]


def on_gpu(
    work: Path,
    kind: str,
    input_size: int,
    variants: Sequence[Variant],
    repeats: int,
    driver: TorchDriver,
    say: Callable[[str], None],
) -> list[GpuSwitch]:
    """Measure a kind in each variant on the GPU of a driver; raises ConfigError as `on_cpu` does."""
    # The experts share a file: to prepare one takes the processor long, and no time here depends on the weights.
    board, store = synthetic_board(work, kind=kind, experts=4, input_size=input_size, seed=0, files=1)
    prepare(board, store, variants, say)
    experts = list(rules.load(board).experts.values())
    return [
        on_fresh_thread(lambda v=variant: _gpu_switch(driver, store, in_variant(experts, v), repeats))  # type: ignore[misc]
        for variant in variants
    ]


def _gpu_switch(driver: TorchDriver, store: Store, experts: Sequence[Expert], repeats: int) -> GpuSwitch:
    copies = sum(padded(passing_bytes(weights(store, expert)), PAGE) + PAGE for expert in experts)
    device, clock, chance = gpu_device(driver, store, experts[0].kind, copies), Stopwatch(), Random(0)
    size = weights(store, experts[0]).bytes
    _plain_copies(driver, size, repeats, clock)
    device.prepare(experts)
    device.enter("one")
    for expert in experts:
        device.load("pool", expert, keep_copy=True)
    device.activate("one", "pool", experts[0])

    def copied() -> None:
        device.load("pool", experts[0], keep_copy=True)
        device.settle()

    def read() -> None:
        device.read("pool", experts[0])
        copied()

    def ready(expert: Expert) -> None:
        device.load("pool", expert, keep_copy=True)
        device.activate("one", "pool", expert)

    for _ in range(repeats + 1):
        device.evict("pool", experts[0], keep_copy=True)
        clock("copy", copied)
        device.evict("pool", experts[0])
        device.forget(experts[0].id)
        clock("read", read)
    active = experts[0]
    for _ in range(len(experts) * (repeats + 1)):
        active = chance.choice([expert for expert in experts if expert is not active])
        clock("activate", lambda e=active: device.activate("one", "pool", e))  # type: ignore[misc]
        active = chance.choice([expert for expert in experts if expert is not active])
        device.evict("pool", active, keep_copy=True)
        clock("ready", lambda e=active: ready(e))  # type: ignore[misc]
    for images in BATCHES:
        batch = black(experts[0], images)
        for _ in range(len(experts) * (repeats + 1)):
            active = chance.choice([expert for expert in experts if expert is not active])
            clock(f"switched {images}", lambda e=active, b=batch: device.run("one", "pool", e, b))  # type: ignore[misc]
        active = experts[0]
        for _ in range(repeats + 1):
            clock(f"batch {images}", lambda b=batch: device.run("one", "pool", experts[0], b))  # type: ignore[misc]
    median_s = clock.medians_s()
    return GpuSwitch(
        kind=experts[0].kind,
        variant=experts[0].variant,
        bytes=size,
        read_s=median_s["read"],
        copy_s=median_s["copy"],
        plain_copy_s=median_s["plain"],
        activate_s=median_s["activate"],
        ready_s=median_s["ready"],
        batch_s={images: median_s[f"batch {images}"] for images in BATCHES},
        switched_s={images: median_s[f"switched {images}"] for images in BATCHES},
    )


def _plain_copies(driver: TorchDriver, size: int, repeats: int, clock: Stopwatch) -> None:
    """Time plain copies of so many bytes from pinned memory to the device; all memory is released at the end."""
    stream = driver.stream("plain")
    source, target = driver.pinned_memory(size), driver.device_memory(size)

    def plain() -> None:
        stream.do("plain copy", lambda: target.copy_(source, non_blocking=True))
        stream.mark().wait()

    for _ in range(repeats + 1):
        clock("plain", plain)


def gpu_device(driver: TorchDriver, store: Store, kind: str, host_bytes: int = 0) -> CudaDevice:
    """Return a device with one executor, and `host_bytes` of pinned memory for copies.

    It has half of the share of a GPU's free memory that a line would take.
    """
    # The memory of the last device must be given back before this device takes its memory.
    give_back(driver)
    memory_bytes = int(config.DEVICE_SHARE * driver.usage().free / 2)
    return CudaDevice(
        store, {kind: kinds.resolve(kind)}, driver, executors=1, memory_bytes=memory_bytes, host_bytes=host_bytes
    )


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of GPU memory: reserved after the first and the last cycle, at most, and the device's budget."""

    reserved_before: int
    reserved_after: int
    peak_reserved: int
    budget: int


@dataclass(frozen=True, slots=True)
class Cycles:
    """What many cycles left behind. The slope, in bytes a cycle, is by least squares over the second half of them."""

    kind: str
    variant: str
    cycles: int
    experts: int
    rss_slope_bytes: float
    descriptors_before: int
    descriptors_after: int
    device: DeviceMemory | None = None


def turn_over(
    work: Path,
    kind: str,
    input_size: int,
    variant: Variant,
    cycles: int,
    experts: int,
    threads: int,
    driver: TorchDriver | None,
) -> Cycles:
    """Load, run and evict experts in turn, and measure what that leaves behind; without a driver on the CPU."""
    # The experts share a few files: a leak does not depend on the weights.
    board, store = synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=0, files=4)
    prepare(board, store, [variant], lambda sentence: None)
    line = in_variant(list(rules.load(board).experts.values()), variant)
    device = gpu_device(driver, store, kind) if driver else CpuDevice(store, {kind: kinds.resolve(kind)}, threads)
    device.prepare(line)
    images = black(line[0], 1)

    def work_through() -> Cycles:
        device.enter("one")
        process, resident = psutil.Process(), []
        descriptors = reserved = 0
        for number in range(cycles):
            expert = line[number % len(line)]
            device.load("pool", expert, keep_copy=number % 2 == 0)
            device.run("one", "pool", expert, images)
            device.evict("pool", expert)
            resident.append(process.memory_info().rss)
            descriptors = descriptors or open_descriptors()
            reserved = reserved or (driver.usage().reserved if driver else 0)
        half = resident[cycles // 2 :]
        slope = statistics.linear_regression(range(len(half)), half).slope if len(half) > 1 else 0.0
        memory = None
        if driver:
            usage = driver.usage()
            memory = DeviceMemory(reserved, usage.reserved, usage.peak, device.memory_bytes or 0)
        return Cycles(kind, variant, cycles, experts, slope, descriptors, open_descriptors(), memory)

    return on_fresh_thread(work_through)
