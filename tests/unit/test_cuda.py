"""The GPU device on a fake GPU, with real networks prepared in every variant: it says what the CPU says."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from built_once import VARIANTS, linked_copy
from fake_gpu import FEW, FakeDriver

from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda import worker
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import kinds
from coe.store.kinds import ExpertInput
from coe.store.store import Store

MEMORY = 600 << 20


@pytest.fixture(scope="module")
def prepared(tiny, prepared_tiny, tmp_path_factory):
    found, store = prepared_tiny
    own = Store(linked_copy(store.root, tmp_path_factory.mktemp("cuda") / "store"))
    # The first stays as it was trained.
    first = next(iter(found.experts.values())).weights
    shutil.rmtree(own.folder(first))
    linked_copy(Store(tiny[1]).folder(first), own.folder(first))
    return found, own


def says(device, executor, expert):
    chance, size = np.random.default_rng(5), expert.input_size
    images = [ExpertInput(chance.integers(0, 255, (3, size, size), np.uint8), size, size) for _ in range(3)]
    return device.run(executor, "pool", expert, images)


LAZY, LANE_FIRST, BATCHES_FIRST = frozenset(), frozenset({"lane"}), frozenset({"executor 1", "executor 2"})


@pytest.mark.parametrize(
    ("variant", "eager"),
    [
        ("fp32", LAZY),
        pytest.param("q8", LANE_FIRST, marks=pytest.mark.slow),
        pytest.param("fp32", BATCHES_FIRST, marks=pytest.mark.slow),
        *(pytest.param(variant, LAZY, marks=pytest.mark.slow) for variant in VARIANTS if variant != "fp32"),
        pytest.param("fp32", LANE_FIRST, marks=pytest.mark.slow),
    ],
)
def test_it_says_what_the_cpu_says(prepared, variant, eager, monkeypatch):
    monkeypatch.setattr(worker, "SIZES", FEW)
    exact = variant == "fp32"
    board, store = prepared
    known = {expert.kind: kinds.resolve(expert.kind) for expert in board.experts.values()}
    experts = [replace(expert, variant=variant) for expert in list(board.experts.values())[1:]]
    driver, cpu = FakeDriver(eager=eager), CpuDevice(store, known, 1)
    device = CudaDevice(store, known, driver, executors=2, memory_bytes=MEMORY)
    device.prepare(experts, 2)
    expected = {}
    for expert in experts:
        device.load("pool", expert)
        full = replace(expert, variant="fp32")
        cpu.load("pool", full)
        expected[expert.id] = says(cpu, "one", full)
    for executor in ("one", "two", "one"):
        for expert in experts:
            for one, other in zip(says(device, executor, expert), expected[expert.id], strict=True):
                assert (one.score, one.variant) == (pytest.approx(other.score, abs=1e-3 if exact else 0.05), variant)
                assert not exact or (one.label, len(one.boxes)) == (other.label, len(other.boxes))
    assert driver.peak <= MEMORY
