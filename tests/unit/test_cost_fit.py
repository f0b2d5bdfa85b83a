"""K, B, the largest useful batch and what batches hold, from times that are noisy as on a real machine."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe import config
from coe.runtime.cost_fit import batch_memory, fit, plateau, spread, typical
from coe.scheduler.costs import Cost, CostTable, Pace

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
ks = st.floats(1e-4, 1.0)
ratios = st.floats(0.0, 10.0)
noise = st.lists(st.floats(-0.03, 0.03), min_size=len(SIZES), max_size=len(SIZES))


def line(k, b, sizes=SIZES):
    return {n: k * n + b for n in sizes}


@given(ks, ratios)
def test_a_line_is_found_again(k, ratio):
    found = fit(line(k, ratio * k))
    assert found.per_image_s == pytest.approx(k, rel=1e-6)
    assert found.base_s == pytest.approx(ratio * k, abs=1e-6 * k)
    assert found.error < 1e-6


@given(ks, ratios, noise)
def test_noise_of_a_few_percent_moves_it_little(k, ratio, errors):
    times = {n: t * (1 + e) for (n, t), e in zip(line(k, ratio * k).items(), errors, strict=True)}
    found = fit(times)
    assert found.per_image_s == pytest.approx(k, rel=0.06 + 0.015 * ratio)
    assert found.base_s == pytest.approx(ratio * k, abs=(0.06 + 0.04 * ratio) * k)
    for n in (1, 5, 7, 10, 14, 16):
        assert found.per_image_s * n + found.base_s == pytest.approx(k * n + ratio * k, rel=0.06)


@given(ks, ratios, noise, st.integers(0, 7), st.floats(1.0, 5.0))
def test_one_disturbed_size_is_left_out(k, ratio, errors, index, factor):
    times = {n: t * (1 + e) for (n, t), e in zip(line(k, ratio * k).items(), errors, strict=True)}
    times[SIZES[index]] *= factor
    found = fit(times)
    off = [abs(found.per_image_s * n + found.base_s - k * n - ratio * k) / (k * n + ratio * k) for n in (5, 7, 10, 14)]
    assert statistics.median(off) < 0.07


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-4, 10.0), min_size=1))
def test_whatever_was_measured_it_makes_sense(times):
    found = fit(times)
    assert found.per_image_s > 0
    assert found.base_s >= 0
    assert found.error >= 0


def test_what_leaves_the_line_at_an_end_is_left_out():
    times = line(0.02, 0.005)
    # The first image alone is slower than the line foretells; beyond the cache each costs a half more.
    times[1], times[16] = 0.06, 16 * 0.03
    found = fit(times)
    assert found.per_image_s == pytest.approx(0.02)
    assert found.base_s == pytest.approx(0.005)


def test_small_batches_count_as_large_ones_and_times_that_do_not_grow_or_grow_too_steep_have_a_line():
    found = fit({1: 0.102, 2: 0.196, 4: 0.402, 8: 0.78, 16: 1.6})
    assert found.per_image_s + found.base_s == pytest.approx(0.1, rel=0.05)
    found = fit({1: 0.1, 2: 0.099, 4: 0.1})
    assert 0 < found.per_image_s < 0.001
    assert found.base_s == pytest.approx(0.1, rel=0.02)
    assert fit({1: 0.1, 2: 0.3}).base_s == 0
    assert fit({4: 0.2}).per_image_s == pytest.approx(0.05)
    assert fit({4: 0.2}).base_s == 0


@pytest.mark.parametrize("times", [{}, {0: 1.0}, {1: 0.0}])
def test_nonsense_is_refused(times):
    with pytest.raises(ValueError, match="above 0"):
        fit(times)


@pytest.mark.parametrize(
    ("averages", "expected"),
    [
        ({1: 10.0, 2: 8.0, 4: 7.0, 8: 6.8, 16: 6.7}, 4),
        ({1: 10.0, 2: 10.0, 4: 10.0}, 1),
        # Beyond the cache it rises again; that does not make an earlier one better.
        ({1: 26.4, 2: 22.7, 3: 21.6, 4: 20.9, 6: 20.8, 8: 20.5, 12: 23.2, 16: 24.4}, 4),
        ({1: 10.0, 2: 8.0, 4: 6.0, 8: 4.0}, 8),
        # A little at a time is much in the end.
        ({1: 10.0, 2: 9.6, 4: 9.3, 8: 9.0}, 4),
        ({3: 1.0}, 3),
    ],
)
def test_the_plateau_of_the_average(averages, expected):
    assert plateau({n: n * average for n, average in averages.items()}) == expected


@given(ks, ratios, st.floats(0.01, 0.2))
def test_no_larger_size_than_the_plateau_gains_more(k, ratio, gain):
    times = line(k, ratio * k)
    found = plateau(times, gain)
    assert all(times[n] / n > (1 - gain) * (times[found] / found) for n in SIZES if n > found)


@given(st.dictionaries(st.integers(1, 64), st.integers(0, 1 << 30), min_size=1), st.integers(0, 1 << 24))
def test_no_size_that_was_measured_holds_more_than_is_said(held, least):
    bound = batch_memory(held, least)
    assert bound.activation_bytes >= least
    assert bound.workspace_bytes >= 0
    assert all(taken <= bound.bytes(n) for n, taken in held.items())


def test_memory_on_a_line_is_that_line_and_repeats_are_not_moved_by_other_work():
    bound = batch_memory({1: 110, 2: 120, 8: 180})
    assert (bound.activation_bytes, bound.workspace_bytes) == (10, 100)
    assert typical([1.0, 1.01, 5.0, 1.02, 9.0]) == 1.01
    assert typical([3.0]) == 3.0
    assert spread([1.0]) == 0
    assert spread([1.0, 1.0, 2.0, 2.0]) == pytest.approx(1 / 1.5)


# Costs that follow the time that batches really take


COST = Cost(per_image_s=0.1, base_s=0.2, load_s=1.0, weights_bytes=10, activation_bytes=1)


def after(pace, times, batches, each_s=0.5):
    """Let batches take so many times as long as stated."""
    return [pace.ran(each_s, times * each_s) for _ in range(batches)]


def test_batches_that_are_as_measured_held_up_or_without_a_time_change_nothing():
    pace = Pace()
    assert not any(after(pace, 1.2, 200))
    assert pace.value == 1
    pace = Pace()
    after(pace, 1.0, 20)
    assert not any(after(pace, 300.0, config.PACE_BATCHES // 2))
    assert not any(after(pace, 1.0, 20))
    pace = Pace()
    assert not any(pace.ran(*times) for times in [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.nan)] * 20)
    assert not any(pace.ran(*times) for times in [(1.0, math.inf), (1.0, -math.inf), (math.inf, 1.0)] * 20)
    assert pace.value == 1


@pytest.mark.parametrize("times", [0.4, 1.5, 2.0, 30.0])
def test_costs_follow_after_a_few_batches_and_come_back(times):
    pace = Pace()
    assert after(pace, times, config.PACE_BATCHES) == [False] * (config.PACE_BATCHES - 1) + [True]
    assert pace.value == pytest.approx(times)
    assert sum(after(pace, 1.0, 2 * config.PACE_BATCHES)) == 1
    assert pace.value == pytest.approx(1)


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0.001, 100)), max_size=60))
def test_the_pace_stays_between_the_extremes_of_what_was_seen(batches):
    pace = Pace()
    for stated_s, took_s in batches:
        pace.ran(stated_s, took_s)
    ratios = [1.0, *(took_s / stated_s for stated_s, took_s in batches)]
    assert min(ratios) <= pace.value <= max(ratios)


def test_a_table_follows_for_its_device_alone_and_never_for_loads():
    stated = CostTable({(device, "a"): COST for device in ("cpu", "cuda")})
    assert stated.ran("cpu", "a", 3, 99.0) is None, "a plain table does not follow"
    assert stated.stated is stated
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
