"""What a switch costs on a GPU: from disk and from host memory to weights that run, beside the plain limits.

All is timed in turn on one executor, as in `coe.bench.switch`, until the device has done it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coe import config
from coe.bench.synthetic import prepare, synthetic_board
from coe.board import rules
from coe.core import Expert
from coe.runtime.aside import aside
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.device import CudaDevice
from coe.runtime.cuda.driver import Driver
from coe.runtime.cuda.garbage import give_back
from coe.store import kinds
from coe.store.blob_format import Variant
from coe.store.kinds import Prepared
from coe.store.store import Store

BATCHES = (1, 4, 8, 16)
_EXPERTS = 4


@dataclass(frozen=True, slots=True)
class GpuSwitch:
    """Medians of one kind in one variant, in seconds. `batch_s` and `switched_s` are by batch size.

    `read_s` reads, proves and copies a file that the system caches; `copy_s` copies from pinned memory; `plain_copy_s`
    is a plain pinned copy of as many bytes. `batch_s` is a batch on an expert that is active, `switched_s` one on
    another resident expert each time.
    """

    kind: str
    variant: str
    bytes: int
    read_s: float
    copy_s: float
    plain_copy_s: float
    batch_s: dict[int, float]
    switched_s: dict[int, float]


@dataclass(frozen=True, slots=True)
class GpuCycles:
    """What many loads, batches and evictions left behind, and the most that was reserved beside the budget."""

    cycles: int
    reserved_before: int
    reserved_after: int
    peak_reserved: int
    budget: int


def measure(
    work: Path,
    kind: str,
    input_size: int,
    variants: Sequence[Variant],
    repeats: int,
    say: Callable[[str], None],
    *,
    driver: Driver | None = None,
) -> list[GpuSwitch]:
    """Measure a kind on experts of random weights in `work`; raises ConfigError where there is no GPU."""
    gpu = driver or torch_driver.driver()
    board, store = synthetic_board(work, kind=kind, experts=_EXPERTS, input_size=input_size, seed=0)
    prepare(board, store, variants, say)
    experts = list(rules.load(board).experts.values())
    return [
        aside(lambda one=variant: _measured(gpu, store, _in(experts, one), repeats))  # type: ignore[misc]
        for variant in variants
    ]


def turn_over(
    work: Path, kind: str, input_size: int, variant: Variant, cycles: int, experts: int, *, driver: Driver | None = None
) -> GpuCycles:
    """Load, run and evict experts one after another, and see what that leaves behind on the device."""
    gpu = driver or torch_driver.driver()
    board, store = synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=0, files=4)
    prepare(board, store, [variant], lambda sentence: None)
    line = _in(list(rules.load(board).experts.values()), variant)
    device = _device(gpu, store, line)
    _take_up(device, line)
    images = _black(line[0], 1)

    def work_through() -> GpuCycles:
        before = 0
        for number in range(cycles):
            expert = line[number % len(line)]
            device.load("pool", expert, keep=number % 2 == 0)
            device.run("one", "pool", expert, images)
            device.evict("pool", expert)
            before = before or gpu.usage().reserved
        usage = gpu.usage()
        return GpuCycles(cycles, before, usage.reserved, usage.peak, device.memory_bytes or 0)

    return aside(work_through)


def _measured(driver: Driver, store: Store, experts: list[Expert], repeats: int) -> GpuSwitch:
    device, times = _device(driver, store, experts), defaultdict[str, list[float]](list)

    def clock(name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        times[name].append(time.perf_counter() - began)

    size = _loads(device, experts[0], repeats, clock)
    _take_up(device, experts)
    for expert in experts:
        device.load("pool", expert)
    for images in BATCHES:
        batch = _black(experts[0], images)
        for number in range(_EXPERTS * (repeats + 1)):
            other = experts[number % len(experts)]
            clock(f"switched {images}", lambda one=other, some=batch: device.run("one", "pool", one, some))  # type: ignore[misc]
        for _ in range(repeats + 1):
            clock(f"batch {images}", lambda some=batch: device.run("one", "pool", experts[0], some))  # type: ignore[misc]
    middle = {name: statistics.median(some[1:]) for name, some in times.items()}
    return GpuSwitch(
        kind=experts[0].kind,
        variant=experts[0].variant,
        bytes=size,
        read_s=middle["read"],
        copy_s=middle["copy"],
        plain_copy_s=middle["plain"],
        batch_s={images: middle[f"batch {images}"] for images in BATCHES},
        switched_s={images: middle[f"switched {images}"] for images in BATCHES},
    )


def _loads(device: CudaDevice, expert: Expert, repeats: int, clock: Callable[[str, Callable[[], object]], None]) -> int:
    """Time loads and plain copies of an expert's bytes, and return how many; what it takes is let go of at its end."""
    with device.trial(expert) as trial:
        for _ in range(repeats + 1):
            clock("read", trial.load)
            clock("copy", trial.copy)
        size = trial.weights_bytes
    plain = _plain_copy(device.driver, size)
    for _ in range(repeats + 1):
        clock("plain", plain)
    return size


def _device(driver: Driver, store: Store, experts: Sequence[Expert]) -> CudaDevice:
    # The last device's memory must be gone before this one's is taken.
    give_back(driver)
    kind = experts[0].kind
    memory_bytes = int(config.DEVICE_SHARE * driver.usage().free / 2)
    return CudaDevice(store, {kind: kinds.resolve(kind)}, driver, executors=1, memory_bytes=memory_bytes)


def _take_up(device: CudaDevice, experts: Sequence[Expert]) -> None:
    device.prepare(experts)
    device.enter("one")


def _plain_copy(driver: Driver, size: int) -> Callable[[], None]:
    stream, host, there = driver.stream("plain"), driver.pinned_memory(size), driver.device_memory(size)

    def copy() -> None:
        stream.do("plain copy", lambda: there.copy_(host, non_blocking=True))
        stream.mark().wait()

    return copy


def _in(experts: list[Expert], variant: Variant) -> list[Expert]:
    return [replace(expert, variant=variant) for expert in experts]


def _black(expert: Expert, images: int) -> list[Prepared]:
    size = expert.input_size
    return [Prepared(np.zeros((3, size, size), np.uint8), size, size)] * images
