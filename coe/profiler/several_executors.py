"""Measures how much faster several executors are than one: they share caches, memory, and perhaps cores."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from coe.core import Expert
from coe.inspector import line_devices
from coe.profiler.target import Target
from coe.runtime.device import Device
from coe.store.kinds import ExpertInput, Kind
from coe.store.store import Store

_ROUNDS = 5


def together(
    expert: Expert,
    kind: Kind,
    store: Store,
    executors: int,
    target: Target,
    *,
    images: int = 2,
    device_bytes: int | None = None,
) -> float:
    """Return the joint speed of `executors` executors of a target; a single executor has speed 1.

    All run at once, on threads that end; each runs batches of `images` images on its own copy of the expert. Raises
    StoreError, ConfigError if they do not fit into `device_bytes` of a GPU.
    """
    if executors == 1:
        return 1.0
    device = target.device
    batch = [
        ExpertInput(np.zeros((3, expert.input_size, expert.input_size), np.uint8), *[expert.input_size] * 2)
    ] * images

    def batch_s(number: int) -> float:
        parts = {device: number}, store, {kind.name: kind}, {device: target.threads}
        line_device = line_devices.make(*parts, gpu=line_devices.GpuSettings(device_bytes, 0))[device]
        return _batch_s(line_device, expert, batch, number)

    return min(float(executors), executors * batch_s(1) / batch_s(executors))


def _batch_s(device: Device, expert: Expert, batch: Sequence[ExpertInput], executors: int) -> float:
    """Return the seconds of a batch while `executors` executors run."""
    device.prepare([expert], executors)
    names = [f"executor {number}" for number in range(executors)]
    ready = threading.Barrier(executors)

    def work(name: str) -> float:
        device.enter(name)
        try:
            device.run(name, name, expert, batch)
            ready.wait()
            return statistics.median(_run_s(device, name, expert, batch) for _ in range(_ROUNDS))
        except BaseException:
            # The other executors would wait at the barrier for ever.
            ready.abort()
            raise

    for name in names:
        device.load(name, expert)
    try:
        with ThreadPoolExecutor(executors, thread_name_prefix="coe-together") as pool:
            futures = [pool.submit(work, name) for name in names]
        for error in filter(None, (future.exception() for future in futures)):
            # A broken barrier only tells that another executor failed.
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return statistics.mean(future.result() for future in futures)
    finally:
        for name in names:
            device.evict(name, expert)
        device.trim()


def _run_s(device: Device, name: str, expert: Expert, batch: Sequence[ExpertInput]) -> float:
    began = time.perf_counter()
    device.run(name, name, expert, batch)
    return time.perf_counter() - began
