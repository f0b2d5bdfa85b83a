"""Random loads, evictions and batches on a CPU: whatever came before, a divided expert says what it said whole."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from common_trunk import LABELS
from tables import with_slow_rows

from coe.core import Expert
from coe.runtime.cpu import CpuDevice
from coe.store import kinds
from coe.store.blob_format import Variant
from coe.store.kinds import ExpertInput
from coe.store.store import Store

IMAGE = ExpertInput(np.random.default_rng(5).integers(0, 255, (3, 32, 32), dtype=np.uint8), 32, 32)
VARIANTS: tuple[Variant, ...] = ("fp32", "q8")
EXPERTS = [
    Expert(f"{name} {variant}", "narrow", labels, 32, f"trunk/{name}", variant)
    for name, labels in LABELS.items()
    for variant in VARIANTS
]


class Pool:
    """A pool of a device, and the experts that hold each body there."""

    def __init__(self, store: Store) -> None:
        self.store, self.device = store, CpuDevice(store, {"narrow": kinds.resolve("narrow")}, 1)
        self.device.prepare(EXPERTS, executors=2)
        self.here: list[Expert] = []

    def body_of(self, expert: Expert) -> str | None:
        body = self.store.manifest(expert.weights).variants[expert.variant].body
        return None if body is None else body.digest

    def is_held(self, body: str | None) -> bool:
        return any(self.body_of(expert) == body for expert in self.here)

    def load(self, expert: Expert) -> None:
        body = self.body_of(expert)
        self.device.load("pool", expert, body=body is not None and not self.is_held(body))
        self.here.append(expert)

    def evict(self, expert: Expert) -> None:
        self.here.remove(expert)
        body = self.body_of(expert)
        self.device.evict("pool", expert, body=None if self.is_held(body) else body)

    def score(self, executor: str, expert: Expert) -> float:
        return self.device.run(executor, "pool", expert, [IMAGE])[0].score


@pytest.fixture(scope="module")
def expected(prepared_trunk: Path) -> dict[str, float]:
    """What each expert says while nothing is shared."""
    pool, scores = Pool(Store(prepared_trunk)), {}
    for expert in EXPERTS:
        pool.load(expert)
        scores[expert.id] = pool.score("one", expert)
    return scores


@pytest.mark.parametrize("seed", with_slow_rows(range(3), fast=1))
def test_slots_bind_the_right_body_whatever_came_before(
    shared_trunk: Path, expected: dict[str, float], seed: int
) -> None:
    dice, pool = random.Random(seed), Pool(Store(shared_trunk))
    for _ in range(60):
        expert = dice.choice(EXPERTS)
        if expert not in pool.here:
            pool.load(expert)
        elif dice.random() < 0.4:
            pool.evict(expert)
            continue
        for executor in dice.sample(["one", "two"], k=dice.randint(1, 2)):
            assert pool.score(executor, expert) == expected[expert.id]
    for expert in list(pool.here):
        pool.evict(expert)
    assert not list(pool.device._bodies)
    pool.device.trim()
    assert pool.device._buffers.allocated_bytes == 0
