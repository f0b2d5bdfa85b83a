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


@pytest.fixture(autouse=True)
def _few_graphs(monkeypatch):
    monkeypatch.setattr(worker, "SIZES", FEW)


def known(found):
    return {expert.kind: kinds.resolve(expert.kind) for expert in found.experts.values()}


def gpu(prepared, driver=None, *, experts=None, executors=2, **options):
    found, store = prepared
    device = CudaDevice(
        store, known(found), driver or FakeDriver(), **{"executors": executors, "memory_bytes": MEMORY, **options}
    )
    device.prepare(experts or found.experts.values(), executors)
    return device


def images(expert, many=3, seed=5):
    chance = np.random.default_rng(seed)
    size = expert.input_size
    return [ExpertInput(chance.integers(0, 255, (3, size, size), dtype=np.uint8), size, size) for _ in range(many)]


def cpu_says(prepared, expert, many=3):
    found, store = prepared
    device, expert = CpuDevice(store, known(found), 1), replace(expert, variant="fp32")
    device.load("pool", expert)
    return device.run("one", "pool", expert, images(expert, many))


def same(one, other, tolerance):
    for first, second in zip(one, other, strict=True):
        assert second.score == pytest.approx(first.score, abs=tolerance)
        assert tolerance > 1e-3 or (first.label, len(first.boxes)) == (second.label, len(second.boxes))


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
def test_it_says_what_the_cpu_says(prepared, variant, eager):
    experts = [replace(expert, variant=variant) for expert in list(prepared[0].experts.values())[1:]]
    driver = FakeDriver(eager=eager)
    device = gpu(prepared, driver, experts=experts)
    expected = {expert.id: cpu_says(prepared, expert) for expert in experts}
    for expert in experts:
        device.load("pool", expert)
    for executor in ("one", "two", "one"):
        for expert in experts:
            found = device.run(executor, "pool", expert, images(expert))
            same(expected[expert.id], found, 1e-3 if variant == "fp32" else 0.05)
            assert {finding.variant for finding in found} == {variant}
    assert driver.peak <= MEMORY
