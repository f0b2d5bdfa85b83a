"""Experts that are differences to a parent: products of matrices run outside of graphs, in a workspace of their own."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fine_tuned import expert

from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import kinds
from coe.store.kinds import ExpertInput
from coe.store.store import Store

MEMORY = 400 << 20


def test_differences_to_a_parent_run_in_a_small_budget_as_on_the_cpu(fine_tuned: Path) -> None:
    store, narrow = Store(fine_tuned / "store"), {"narrow": kinds.resolve("narrow")}
    experts, driver = [expert(name) for name in "abc"], torch_driver.driver()
    before = driver.usage().reserved
    gpu = CudaDevice(store, narrow, driver, executors=2, memory_bytes=MEMORY, host_bytes=20 << 20)
    gpu.prepare(experts, 2)
    cpu = CpuDevice(store, narrow, 1)
    for number, one in enumerate(experts):
        for device in (gpu, cpu):
            device.load("pool", one, body=not number)
    chance = np.random.default_rng(1)
    images = [ExpertInput(chance.integers(0, 255, (3, 32, 32), dtype=np.uint8), 32, 32) for _ in range(5)]
    expected = [[finding.score for finding in cpu.run("cpu", "pool", one, images)] for one in experts]

    def said(executor: str) -> list[list[float]]:
        return [[finding.score for finding in gpu.run(executor, "pool", one, images)] for one in (*experts, *experts)]

    # Each executor has a thread, and each thread a workspace.
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for found in (first.submit(said, "one").result(), second.submit(said, "two").result()):
            for scores, wanted in zip(found, (*expected, *expected), strict=True):
                assert scores == pytest.approx(wanted, abs=0.02)
    assert driver.usage().peak - before <= MEMORY
