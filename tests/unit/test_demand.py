"""How often images need an expert, counted over years: weights that would overflow are made small together."""

from __future__ import annotations

import random

import pytest

from coe.scheduler import demand
from coe.scheduler.demand import Demand

SHARES = {"a": 0.9, "b": 0.1, "c": 0.5}


def usage_after(images: int) -> dict[str, float]:
    counted, chance = Demand(dict.fromkeys(SHARES, 0.5), {name: {} for name in SHARES}), random.Random(0)
    for _ in range(images):
        counted.arrived()
        for name, share in SHARES.items():
            if chance.random() < share:
                counted.opened(name)
                counted.closed(name)
    counted.check(idle=True)
    return {name: counted.usage(name) for name in SHARES}


def test_usage_is_the_same_however_often_weights_are_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = usage_after(3000)
    monkeypatch.setattr(demand, "_REBASE", 1.5)
    assert usage_after(3000) == pytest.approx(expected, rel=1e-9)


def test_usage_comes_near_the_share_of_images_that_need_an_expert() -> None:
    assert usage_after(20_000) == pytest.approx(SHARES, abs=0.15)


def test_weights_stay_finite_on_a_line_that_runs_for_years() -> None:
    counted = Demand({"a": 0.5}, {"a": {}})
    for _ in range(200_000):
        counted.arrived()
    assert 0 <= counted.usage("a") < 1e-6
    assert counted._weight <= 2 * demand._REBASE
