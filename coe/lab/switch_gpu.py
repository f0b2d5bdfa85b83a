"""Measures a switch on a GPU, and the least time that it could take; times end when the device is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from coe import config
from coe.board import rules
from coe.core import Expert
from coe.lab.switch import Stopwatch
from coe.lab.workloads.synthetic import black, in_variant, prepare, synthetic_board
from coe.runtime.cuda.collector import give_back
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.cuda.pinned_memory import passing_bytes
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.processor import on_fresh_thread
from coe.runtime.reading import weights
from coe.store import kinds
from coe.store.blob_format import PAGE, Variant, padded
from coe.store.store import Store

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
