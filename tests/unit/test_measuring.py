"""What is measured of an expert: times, costs that fit them, and memory beside its weights."""

import math
import statistics
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiles import kind_profile

from coe import config
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.inspector.measuring import _adapted, _from_disk, profiled_cost
from coe.runtime import trial
from coe.runtime.cost_fit import batch_memory, fit, plateau, spread, typical
from coe.runtime.trial import MeasuredOnce, peak_bytes, peak_growth_bytes, plausible_bytes
from coe.scheduler.costs import Cost, CostTable, Pace
from coe.scheduler.events import Why
from coe.scheduler.plan import PoolSpec
from coe.scheduler.pool import ModelPool

SMALL, LARGE = (Expert(name, "k", ("ok",), 64, f"t/{name}") for name in ("small", "large"))
COST = Cost(per_image_s=0.1, base_s=0.2, load_s=1.0, weights_bytes=1000, activation_bytes=10, copy_s=0.25)


def test_costs_go_by_bytes_as_measured_and_are_no_less_than_those_of_the_file():
    adapted = _adapted(COST, SMALL, LARGE, 1000, 3000)
    cost = profiled_cost(kind_profile(input_size=64, weights_bytes=1000, load_s=1.0, copy_s=0.25), LARGE, 3000)
    assert (adapted.load_s, adapted.copy_s) == (cost.load_s, cost.copy_s) == (3.0, 0.75)
    kind = kind_profile(input_size=64, weights_bytes=9000)
    for variant, size, taken in (("fp32", 4096, 4096), ("int8", 4096, 9000), ("int8", 12288, 12288)):
        assert profiled_cost(kind, replace(SMALL, variant=variant), size).weights_bytes == taken


@pytest.mark.parametrize(("bytes_per_s", "load_s"), [(None, 1.0), (1000, 1.25), (100, 10.25), (10_000, 1.0)])
def test_a_slow_disk_holds_up_the_read_and_the_copy_comes_after_it(bytes_per_s, load_s):
    cost = _from_disk(COST, 1000, bytes_per_s)
    assert (cost.load_s, cost.copy_s) == (load_s, 0.25)


class Counting:
    def __init__(self):
        self.times = self.inside = self.most = 0
        self.others = threading.Event()

    def __call__(self):
        self.inside += 1
        self.times += 1
        self.most = max(self.most, self.inside)
        # Others have the time to come in, if anything lets them.
        self.others.wait(0.02)
        self.inside -= 1
        return COST


def test_ten_that_ask_at_once_measure_once_and_two_never_at_once():
    known, measure = MeasuredOnce(), Counting()
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: known.once("resnet18", measure), range(10)))
    assert found == [COST] * 10
    assert (measure.times, repr(known)) == (1, "<MeasuredOnce 1 results>")
    known, measure = MeasuredOnce(), Counting()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: known.once(key, measure), range(3)))
        list(pool.map(lambda _: known.alone(measure), range(3)))
    assert (measure.times, measure.most) == (6, 1)


def test_an_error_is_not_remembered_and_the_oldest_goes_if_there_are_many(monkeypatch):
    known = MeasuredOnce()

    def fail():
        raise StoreError("damaged")

    for ask in (lambda: known.once("a", fail), lambda: known.alone(fail)):
        with pytest.raises(StoreError, match="damaged"):
            ask()
    assert known.once("a", lambda: COST) == COST
    monkeypatch.setattr(trial, "_MOST_RESULTS", 2)
    known, measure = MeasuredOnce(), Counting()
    for key in ("a", "b", "c", "b", "a"):
        known.once(key, measure)
    assert measure.times == 4


def test_time_in_which_other_programs_had_the_processor_is_no_part_of_a_batch_or_a_load(tmp_path, monkeypatch):
    clock = {"now": 0.0, "waited": 0.0}

    def work(*_):
        clock["now"] += 5.0
        clock["waited"] += 3.0

    monkeypatch.setattr(trial.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(trial, "waited_for_processor_s", lambda: clock["waited"])
    measured = trial.Trial(work, 8, 100, tmp_path / "file", work)
    assert (measured.batch_s(1), measured.load_s()) == (2.0, 2.0)


GOOD = {"per_image_s": 0.1, "base_s": 0.2, "load_s": 1.0, "weights_bytes": 10, "activation_bytes": 4}


MANY = math.inf


@pytest.mark.parametrize(
    ("activation", "workspace", "room", "images"),
    [
        *((4, 0, 12, 3), (4, 0, 11, 2), (4, 3, 11, 2), (4, 3, 2, 0), (4, 0, -4, 0)),
        *((0, 3, 2, 0), (0, 3, 3, MANY), (0, 0, 0, MANY), (0, 0, -1, 0)),
    ],
)
def test_how_many_images_fit(activation, workspace, room, images):
    cost = Cost(**{**GOOD, "activation_bytes": activation, "workspace_bytes": workspace})
    assert min(cost.images_in(room), 1000) == min(images, 1000)


@given(
    waiting=st.integers(1, 40),
    activation=st.sampled_from([0, 0, 1, 7]),
    workspace=st.sampled_from([0, 1, 30, 10**12]),
    max_batch=st.integers(1, 32),
    taken=st.integers(0, 90),
)
def test_a_batch_that_is_split_off_always_fits_and_one_more_would_not(waiting, activation, workspace, max_batch, taken):
    cost = Cost(**{**GOOD, "activation_bytes": activation, "workspace_bytes": workspace, "max_batch": max_batch})
    pool = ModelPool(PoolSpec("cpu0", "cpu", 100, 0))
    for expert, size in (("a", cost.weights_bytes), ("b", taken)):
        pool.plan(expert, size, Why.DEMAND)
        assert pool.reserve(expert)
        pool.commit(expert)
    room = pool.batch_room_bytes()
    size = min(waiting, cost.max_batch, cost.images_in(room))
    assert 0 <= size <= min(waiting, max_batch)
    if size:
        pool.pin("a", cost.batch_bytes(size))
        pool.check()
    if size < min(waiting, max_batch):
        assert cost.batch_bytes(size + 1) > room


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, bad) for name in GOOD for bad in (-1, math.nan, math.inf)),
        *((name, -1) for name in ("workspace_bytes", "copy_s", "max_batch")),
        ("max_batch", 0),
    ],
)
def test_what_no_expert_can_cost_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        Cost(**{**GOOD, name: value})


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


def test_what_leaves_the_line_at_an_end_is_left_out_and_times_that_do_not_grow_or_too_steeply_have_a_line():
    for nonsense in ({}, {0: 1.0}, {1: 0.0}):
        with pytest.raises(ValueError, match="above 0"):
            fit(nonsense)
    times = line(0.02, 0.005)
    # The first image alone is slower than the line foretells; beyond the cache each costs a half more.
    times[1], times[16] = 0.06, 16 * 0.03
    found = fit(times)
    assert found.per_image_s == pytest.approx(0.02)
    assert found.base_s == pytest.approx(0.005)
    found = fit({1: 0.102, 2: 0.196, 4: 0.402, 8: 0.78, 16: 1.6})
    assert found.per_image_s + found.base_s == pytest.approx(0.1, rel=0.05)
    found = fit({1: 0.1, 2: 0.099, 4: 0.1})
    assert 0 < found.per_image_s < 0.001
    assert found.base_s == pytest.approx(0.1, rel=0.02)
    assert fit({1: 0.1, 2: 0.3}).base_s == 0
    assert fit({4: 0.2}).per_image_s == pytest.approx(0.05)
    assert fit({4: 0.2}).base_s == 0


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


def after(pace, times, batches, each_s=0.5):
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
    assert (slow.batch_s(3), slow.load_s, slow.weights_bytes) == (pytest.approx(pace * 0.5), 1.0, 1000)
    assert costs("cuda", "a") is costs.stated("cpu", "a") is COST
    assert costs.devices() == ["cpu", "cuda"]


MIB = 1 << 20


def zeros(mib):
    return torch.zeros(mib * MIB, dtype=torch.uint8)


def test_tensors_are_counted_while_they_live_and_views_take_nothing():
    def run():
        one, two = zeros(1), zeros(3)
        del one
        return two, zeros(2)

    assert peak_bytes(run) == 5 * MIB
    assert peak_bytes(lambda: zeros(1).view(2, -1).add_(1)[0]) == MIB


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_growth_sees_what_is_freed_again():
    assert 60 * MIB < peak_growth_bytes(lambda: zeros(64).add_(1).size()) < 80 * MIB


@pytest.mark.parametrize(
    ("growths", "believed"),
    # One that can be, the second, the third, none (the most that can be), and the same each time.
    [([25], 25), ([400, 30], 30), ([400, 300, 31], 31), ([400, 300, 900], 34), ([90, 92, 91], 90)],
)
def test_what_other_threads_take_is_not_believed(growths, believed):
    seen = iter(growths)
    assert plausible_bytes(10 * MIB, lambda: next(seen) * MIB) == believed * MIB


def test_a_thread_that_fills_memory_beside_the_run_does_not_count():
    filled = []

    def growth():
        filled.append(256 * MIB)
        return sum(filled)

    assert plausible_bytes(MIB, growth) == 7 * MIB
