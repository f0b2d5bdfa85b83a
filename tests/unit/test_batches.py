"""Batches timed by size on a machine that is disturbed now and then: sizes that were not timed are foretold."""

from __future__ import annotations

import random

import pytest

from coe.profiler.measure import TimeLimit, climb, rounds
from coe.runtime.cost_fit import fit, typical


class Disturbed:
    """An expert whose batch of n takes base + n times each, a few percent more or less, and now and then much more."""

    def __init__(self, base_s: float, each_s: float, seed: int) -> None:
        self.base_s, self.each_s, self.chance = base_s, each_s, random.Random(seed)
        self.asked: list[int] = []

    def batch_bytes(self, images: int) -> int:
        return 1000 * images

    def batch_s(self, images: int) -> float:
        self.asked.append(images)
        disturbed = 3.0 if self.chance.random() < 0.1 else self.chance.uniform(0.97, 1.03)
        return (self.base_s + self.each_s * images) * disturbed


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("base_s", "each_s"), [(0.010, 0.004), (0.001, 0.020), (0.050, 0.050)])
def test_sizes_that_were_not_timed_are_foretold(base_s: float, each_s: float, seed: int) -> None:
    trial = Disturbed(base_s, each_s, seed)
    limit = TimeLimit(60.0, lambda done: None)
    held, repeats = climb(trial, (1, 2, 4, 8), limit)  # type: ignore[arg-type]
    rounds(trial, repeats, limit)  # type: ignore[arg-type]
    assert held == {1: 1000, 2: 2000, 4: 4000, 8: 8000}
    found = fit({n: typical(each) for n, each in repeats.items()})
    for n in (3, 5, 6, 7):
        assert found.per_image_s * n + found.base_s == pytest.approx(base_s + each_s * n, rel=0.1)


def test_rounds_go_up_and_down_in_turn() -> None:
    trial = Disturbed(0.010, 0.004, 1)
    rounds(trial, {1: [0.014], 2: [0.018], 4: [0.026]}, TimeLimit(60.0, lambda done: None))  # type: ignore[arg-type]
    assert trial.asked[:12] == [4, 2, 1, 1, 2, 4, 4, 2, 1, 1, 2, 4]
