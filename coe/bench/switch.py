"""Measures a switch on the CPU or on a GPU, and the least time that this machine could take for it.

All operations on an expert are timed in turn, many times, so that a slow moment of the machine hits all of them. Times
on a GPU end when the device is done.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from coe import config
from coe.bench.synthetic import black, in_variant, prepare, synthetic_board
from coe.bench.usual import constructed
from coe.board import rules
from coe.core import Expert
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.cuda.device import CudaDevice
from coe.runtime.cuda.driver import Driver
from coe.runtime.cuda.garbage import give_back
from coe.runtime.cuda.host import passing_bytes
from coe.runtime.fresh_thread import on_fresh_thread
from coe.runtime.reading import Weights, weights
from coe.runtime.slot import Slot
from coe.store import kinds
from coe.store.blob_format import PAGE, Variant, padded
from coe.store.kinds import ModuleKind
from coe.store.store import Store
from coe.system import forget_file

BATCHES = (1, 4, 8, 16)
"""The sizes of batches on a GPU."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Medians of one kind in one variant, in seconds; None where the system would not forget the file.

    `read_*` is the plain read of the same file into memory that is reused; `load_*` is a load by the engine, checksums
    included, until the expert can run. `ready_s` is the time from memory until it can run, with conversion if needed;
    `copy_s` is a plain copy of as many bytes as the weights have in fp32. `usual_s` is the usual way, from a file in
    the system's cache: construct, `torch.load`, `load_state_dict`.
    """

    kind: str
    variant: str
    bytes: int
    fp32_bytes: int
    read_warm_s: float
    load_warm_s: float
    read_cold_s: float | None
    load_cold_s: float | None
    ready_s: float
    copy_s: float
    usual_s: float


@dataclass(frozen=True, slots=True)
class GpuSwitch:
    """Medians of one kind in one variant on a GPU, in seconds. `batch_s` and `switched_s` are by batch size.

    `read_s` reads, checks and copies a file that the system caches; `copy_s` copies from pinned memory; `plain_copy_s`
    is a plain pinned copy of as many bytes. `activate_s` makes a resident expert ready, `ready_s` an expert in pinned
    memory. `batch_s` is a batch on an expert that is active, `switched_s` a batch on another resident expert each time.
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
        usual = _usual(store, experts[0])
        return [_switch(name, pair, usual, trained[0].bytes, repeats) for name, pair in pairs.items()]

    return on_fresh_thread(measured)


def on_gpu(
    work: Path,
    kind: str,
    input_size: int,
    variants: Sequence[Variant],
    repeats: int,
    driver: Driver,
    say: Callable[[str], None],
) -> list[GpuSwitch]:
    """Measure a kind in each variant on the GPU of a driver; raises ConfigError as `on_cpu` does."""
    board, store = synthetic_board(work, kind=kind, experts=4, input_size=input_size, seed=0)
    prepare(board, store, variants, say)
    experts = list(rules.load(board).experts.values())
    return [
        on_fresh_thread(lambda v=variant: _gpu_switch(driver, store, in_variant(experts, v), repeats))  # type: ignore[misc]
        for variant in variants
    ]


class _Stopwatch:
    """Times by name. The first time of each only warms up."""

    def __init__(self) -> None:
        self._all_s: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self._all_s[name].append(time.perf_counter() - began)

    def medians_s(self) -> dict[str, float]:
        """Return the median by name, without the first time."""
        return {name: statistics.median(times_s[1:]) for name, times_s in self._all_s.items() if len(times_s) > 1}


# On the CPU


def _switch(
    variant: str, pair: Sequence[Weights], usual: Callable[[], object], fp32_bytes: int, repeats: int
) -> Switch:
    """Time all operations on two experts in turn."""
    import torch

    buffers, clock = Buffers(), _Stopwatch()
    slot = Slot(_module_kind(pair[0].expert), pair[0].expert, pair[0].needs().structure)
    resident = [expert.read(buffers) for expert in pair]
    source, target = torch.zeros(fp32_bytes, dtype=torch.uint8), torch.zeros(fp32_bytes, dtype=torch.uint8)
    plain = memoryview(bytearray(pair[0].bytes))
    loaded: list[Blob] = []

    def read() -> None:
        _plain_read(pair[0].path, plain)

    def load() -> None:
        loaded.append(pair[0].read(buffers))
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
        timed("usual", usual)
        for name, work in (("cold read", read), ("cold load", load)):
            if forget_file(pair[0].path):
                timed(name, work)
    median_s = clock.medians_s()
    return Switch(
        kind=pair[0].expert.kind,
        variant=variant,
        bytes=pair[0].bytes,
        fp32_bytes=fp32_bytes,
        read_warm_s=median_s["warm read"],
        load_warm_s=median_s["warm load"],
        read_cold_s=median_s.get("cold read"),
        load_cold_s=median_s.get("cold load"),
        ready_s=median_s["ready"],
        copy_s=median_s["copy"],
        usual_s=median_s["usual"],
    )


def _plain_read(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(into):
            done += file.readinto(into[done:])


def _usual(store: Store, expert: Expert) -> Callable[[], object]:
    """Return a function that makes a model ready in the usual way."""
    import torch

    kind, path = _module_kind(expert), store.root.parent / "usual.pt"
    torch.save(store.load(expert.weights), path)
    return lambda: constructed(kind, expert, torch.load(path, map_location="cpu", weights_only=True))


def _module_kind(expert: Expert) -> ModuleKind:
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, ModuleKind), "a synthetic board has module kinds only"
    return kind


# On a GPU


def _gpu_switch(driver: Driver, store: Store, experts: Sequence[Expert], repeats: int) -> GpuSwitch:
    copies = sum(padded(passing_bytes(weights(store, expert)), PAGE) + PAGE for expert in experts)
    device, clock, chance = gpu_device(driver, store, experts[0].kind, copies), _Stopwatch(), Random(0)
    size = _loads(device, experts[0], repeats, clock)
    device.prepare(experts)
    device.enter("one")
    for expert in experts:
        device.load("pool", expert, keep_copy=True)
    device.activate("one", "pool", experts[0])

    def ready(expert: Expert) -> None:
        device.load("pool", expert, keep_copy=True)
        device.activate("one", "pool", expert)

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


def _loads(device: CudaDevice, expert: Expert, repeats: int, clock: _Stopwatch) -> int:
    """Time loads and plain copies of an expert's bytes, and return their number; all memory is released at the end."""
    with device.trial(expert) as trial:
        for _ in range(repeats + 1):
            clock("read", trial.load)
            clock("copy", trial.copy)
        size = trial.weights_bytes
    stream = device.driver.stream("plain")
    source, target = device.driver.pinned_memory(size), device.driver.device_memory(size)

    def plain() -> None:
        stream.do("plain copy", lambda: target.copy_(source, non_blocking=True))
        stream.mark().wait()

    for _ in range(repeats + 1):
        clock("plain", plain)
    return size


def gpu_device(driver: Driver, store: Store, kind: str, host_bytes: int = 0) -> CudaDevice:
    """Return a device with one executor, and `host_bytes` of pinned memory for copies.

    It has half of the share of a GPU's free memory that a line would take.
    """
    # The memory of the last device must be given back before this device takes its memory.
    give_back(driver)
    memory_bytes = int(config.DEVICE_SHARE * driver.usage().free / 2)
    return CudaDevice(
        store, {kind: kinds.resolve(kind)}, driver, executors=1, memory_bytes=memory_bytes, host_bytes=host_bytes
    )
