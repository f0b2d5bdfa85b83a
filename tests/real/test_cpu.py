"""The CPU as a device, on real networks prepared in every variant."""

import gc
import os

import numpy as np
import psutil
import pytest

from coe.errors import StoreError
from coe.runtime.cpu import CpuDevice
from coe.store import kinds
from coe.store.kinds import ExpertInput
from coe.store.store import Store


@pytest.fixture(scope="module")
def prepared(tiny, prepared_tiny):
    """The small board with each expert prepared, and what unprepared ones say."""
    found, store = prepared_tiny
    trained = device_of(found, Store(tiny[1]))
    return found, store, {id: judge(trained, expert) for id, expert in found.experts.items()}


def device_of(found, store):
    known = {expert.kind: kinds.resolve(expert.kind) for expert in found.experts.values()}
    return CpuDevice(store, known, 1)


def images(expert, many=3):
    chance = np.random.default_rng(5)
    size = expert.input_size
    return [ExpertInput(chance.integers(0, 255, (3, size, size), dtype=np.uint8), size, size) for _ in range(many)]


def judge(device, expert, executor="one"):
    device.load("pool", expert)
    try:
        return device.run(executor, "pool", expert, images(expert))
    finally:
        device.evict("pool", expert)


def as_variant(expert, variant):
    from dataclasses import replace

    return replace(expert, variant=variant)


def test_blobs_say_what_the_trained_weights_say(prepared):
    found, store, before = prepared
    device = device_of(found, store)
    for id, expert in found.experts.items():
        for one, other in zip(before[id], judge(device, expert), strict=True):
            assert (other.label, other.score) == (one.label, pytest.approx(one.score, abs=1e-3))
        with pytest.raises(StoreError, match="q8 on GPUs alone"):
            device.load("pool", as_variant(expert, "q8"))


@pytest.mark.slow
def test_sixty_switches_leave_no_descriptor_open_and_no_memory_behind(prepared):
    found, store, _ = prepared
    device, process = device_of(found, store), psutil.Process()

    def turn():
        for _ in range(3):
            for expert in list(found.experts.values())[:3]:
                judge(device, expert)

    turn()
    gc.collect()
    descriptors, resident = len(os.listdir("/proc/self/fd")), process.memory_info().rss
    for _ in range(5):
        turn()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert process.memory_info().rss - resident < 60e6
