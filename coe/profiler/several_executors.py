"""Measures how much faster several executors are than one: they share caches, memory, and perhaps cores."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coe.core import Expert
from coe.errors import ConfigError, DeviceFull
from coe.inspector import line_devices
from coe.profiler.measure import MeasuredExpert, with_weights
from coe.runtime.device import Device
from coe.runtime.processor import on_fresh_thread
from coe.store.kinds import ExpertInput

_ROUNDS = 5


def joint_speeds(subject: MeasuredExpert, known: Sequence[float], most: int, *, images: int = 2) -> tuple[float, ...]:
    """Return the joint speed of 1, 2, ... executors, up to `most` or until they do not fit; one executor has speed 1.

    `known` speeds are not measured again. More executors than fitted before are tried: there may be more memory now.
    """
    speeds = [*(known or [1.0])]
    with TemporaryDirectory(prefix="coe-profile-") as folder:
        if len(speeds) < most:
            store = on_fresh_thread(
                lambda: with_weights(subject.expert, subject.kind, subject.store, Path(folder), lambda sentence: None)
            )
            speeds += _until_full(replace(subject, store=store), range(len(speeds) + 1, most + 1), images)
    return tuple(speeds)


def _until_full(subject: MeasuredExpert, numbers: Sequence[int], images: int) -> Iterator[float]:
    for number in numbers:
        try:
            yield joint_speed(subject, number, images=images)
        except (ConfigError, DeviceFull):
            return


def joint_speed(subject: MeasuredExpert, executors: int, *, images: int = 2) -> float:
    """Return the joint speed of executors; all run at once, each batches of `images` images on its copy of the expert.

    Raises StoreError, ConfigError or DeviceFull if they do not fit into the memory of a GPU.
    """
    expert, kind, target = subject.expert, subject.kind, subject.target
    size = expert.input_size
    batch = [ExpertInput(np.zeros((3, size, size), np.uint8), size, size)] * images

    def batch_s(number: int) -> float:
        device = line_devices.make(
            {target.device: number},
            subject.store,
            {expert.kind: kind},
            {target.device: target.threads},
            gpu=line_devices.GpuSettings(subject.device_bytes, 0),
        )[target.device]
        return joint_batch_s(device, expert, batch, number)

    return min(float(executors), executors * batch_s(1) / batch_s(executors))


def joint_batch_s(device: Device, expert: Expert, batch: Sequence[ExpertInput], executors: int) -> float:
    """Return the seconds of a batch while so many executors run, on threads that end."""
    device.prepare([expert], executors)
    names = [f"executor {number}" for number in range(executors)]
    ready = threading.Barrier(executors)

    def run_s(name: str) -> float:
        began = time.perf_counter()
        device.run(name, name, expert, batch)
        return time.perf_counter() - began

    def work(name: str) -> float:
        device.enter(name)
        try:
            run_s(name)
            ready.wait()
            return statistics.median(run_s(name) for _ in range(_ROUNDS))
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
