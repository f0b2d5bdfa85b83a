"""Measures what many loads, batches and evictions leave behind in the process and in the memory of a GPU."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import psutil

from coe.board import rules
from coe.helpers.system import open_descriptors
from coe.lab.switch_gpu import gpu_device
from coe.lab.workloads.synthetic import black, in_variant, prepare, synthetic_board
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.processor import on_fresh_thread
from coe.store import kinds
from coe.store.blob_format import Variant


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
