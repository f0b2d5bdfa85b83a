"""Costs that follow the time that batches really take."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe import config
from coe.scheduler.costs import Cost, CostTable, Pace

COST = Cost(per_image_s=0.1, base_s=0.2, load_s=1.0, weights_bytes=10, activation_bytes=1)


def after(pace: Pace, times: float, batches: int, each_s: float = 0.5) -> list[bool]:
    """Let batches take so many times as long as stated."""
    return [pace.ran(each_s, times * each_s) for _ in range(batches)]


def test_a_machine_that_is_as_measured_is_not_corrected() -> None:
    pace = Pace()
    assert not any(after(pace, 1.2, 200))
    assert pace.value == 1


@pytest.mark.parametrize("times", [0.4, 1.5, 2.0, 30.0])
def test_costs_follow_after_a_few_batches_and_come_back(times: float) -> None:
    pace = Pace()
    assert after(pace, times, config.PACE_BATCHES) == [False] * (config.PACE_BATCHES - 1) + [True]
    assert pace.value == pytest.approx(times)
    assert sum(after(pace, 1.0, 2 * config.PACE_BATCHES)) == 1
    assert pace.value == pytest.approx(1)


def test_a_few_batches_that_were_held_up_change_nothing() -> None:
    pace = Pace()
    after(pace, 1.0, 20)
    assert not any(after(pace, 300.0, config.PACE_BATCHES // 2))
    assert not any(after(pace, 1.0, 20))


def test_batches_without_a_time_say_nothing() -> None:
    pace = Pace()
    assert not any(pace.ran(*times) for times in [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.nan)] * 20)
    assert not any(pace.ran(*times) for times in [(1.0, math.inf), (1.0, -math.inf), (math.inf, 1.0)] * 20)
    assert pace.value == 1


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0.001, 100)), max_size=60))
def test_the_pace_stays_between_the_extremes_of_what_was_seen(batches: list[tuple[float, float]]) -> None:
    pace = Pace()
    for stated_s, took_s in batches:
        pace.ran(stated_s, took_s)
    ratios = [1.0, *(took_s / stated_s for stated_s, took_s in batches)]
    assert min(ratios) <= pace.value <= max(ratios)


def test_a_table_follows_for_its_device_alone_and_never_for_loads() -> None:
    stated = CostTable({(device, "a"): COST for device in ("cpu", "cuda")})
    costs = stated.following()
    assert costs("cpu", "a") is COST
    told = [costs.ran("cpu", "a", 3, 1.5) for _ in range(30)]
    pace = [each for each in told if each is not None][-1]
    assert pace == pytest.approx(3)
    slow = costs("cpu", "a")
    assert (slow.batch_s(3), slow.load_s, slow.weights_bytes) == (pytest.approx(pace * 0.5), 1.0, 10)
    assert costs("cuda", "a") is COST
    assert costs.stated("cpu", "a") is COST
    assert costs.devices() == ["cpu", "cuda"]


def test_a_plain_table_does_not_follow() -> None:
    costs = CostTable({("cpu", "a"): COST})
    assert costs.ran("cpu", "a", 3, 99.0) is None
    assert costs.stated is costs
