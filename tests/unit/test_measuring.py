"""Costs that are worked out from other measurings: an expert of another size, and another disk."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.inspector.measuring import _adapted, _from_disk, profiled_cost
from coe.runtime import trial
from coe.runtime.trial import MeasuredOnce
from coe.scheduler.costs import Cost
from coe.scheduler.events import Why
from coe.scheduler.plan import PoolSpec
from coe.scheduler.pool import ModelPool

SMALL, LARGE = (Expert(name, "k", ("ok",), 64, f"t/{name}") for name in ("small", "large"))
COST = Cost(per_image_s=0.1, base_s=0.2, load_s=1.0, weights_bytes=1000, activation_bytes=10, copy_s=0.25)


def test_costs_go_by_bytes_as_measured_and_are_no_less_than_those_of_the_file():
    adapted = _adapted(COST, SMALL, LARGE, 1000, 3000)
    assert (adapted.load_s, adapted.copy_s) == (3.0, 0.75)
    line = SimpleNamespace(per_image_s=0.1, base_s=0.2)
    sizes = {"input_size": 64, "weights_bytes": 1000, "activation_bytes": 10, "workspace_bytes": 0, "max_batch": 8}
    kind = SimpleNamespace(line=line, load_s=1.0, copy_s=0.25, **sizes)
    cost = profiled_cost(kind, LARGE, 3000)
    assert (cost.load_s, cost.copy_s) == (3.0, 0.75)
    sizes = {"input_size": 64, "weights_bytes": 9000, "activation_bytes": 10, "workspace_bytes": 0, "max_batch": 8}
    kind = SimpleNamespace(line=SimpleNamespace(per_image_s=0.1, base_s=0.2), load_s=1.0, copy_s=0.0, **sizes)
    taken = [
        profiled_cost(kind, replace(SMALL, variant=variant), size).weights_bytes
        for variant, size in (("fp32", 4096), ("int8", 4096), ("int8", 12288))
    ]
    assert taken == [4096, 9000, 12288]


@pytest.mark.parametrize(("bytes_per_s", "load_s"), [(None, 1.0), (1000, 1.25), (100, 10.25), (10_000, 1.0)])
def test_a_slow_disk_holds_up_the_read_and_the_copy_comes_after_it(bytes_per_s, load_s):
    cost = _from_disk(COST, 1000, bytes_per_s)
    assert (cost.load_s, cost.copy_s) == (load_s, 0.25)


# Measurings of one process


ONE_COST = Cost(per_image_s=0.1, base_s=0.2, load_s=0.3, weights_bytes=10, activation_bytes=5)


class Counting:
    """Measures, and counts how many do so at once."""

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
        return ONE_COST


def test_ten_that_ask_at_once_measure_once_and_two_never_at_once():
    known, measure = MeasuredOnce(), Counting()
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: known.once("resnet18", measure), range(10)))
    assert found == [ONE_COST] * 10
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

    with pytest.raises(StoreError, match="damaged"):
        known.once("a", fail)
    with pytest.raises(StoreError, match="damaged"):
        known.alone(fail)
    assert known.once("a", lambda: ONE_COST) == ONE_COST
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


# What a cost is made of, and how many images fit into so many bytes


GOOD = {"per_image_s": 0.1, "base_s": 0.2, "load_s": 1.0, "weights_bytes": 10, "activation_bytes": 4}


@pytest.mark.parametrize(
    ("activation", "workspace", "room", "images"),
    [
        (4, 0, 12, 3),
        (4, 0, 11, 2),
        (4, 3, 11, 2),
        (4, 3, 2, 0),
        (4, 0, -4, 0),
        (0, 3, 2, 0),
        (0, 3, 3, math.inf),
        (0, 0, 0, math.inf),
        (0, 0, -1, 0),
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
