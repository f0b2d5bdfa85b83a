"""Measurings of one process: one at a time, and nothing twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from coe.errors import StoreError
from coe.runtime import trial
from coe.runtime.trial import MeasuredOnce
from coe.scheduler.costs import Cost

COST = Cost(per_image_s=0.1, base_s=0.2, load_s=0.3, weights_bytes=10, activation_bytes=5)


class Counting:
    """Measures, and counts how many do so at once."""

    def __init__(self) -> None:
        self.times = self.inside = self.most = 0
        self.others = threading.Event()

    def __call__(self) -> Cost:
        self.inside += 1
        self.times += 1
        self.most = max(self.most, self.inside)
        # Others have the time to come in, if anything lets them.
        self.others.wait(0.02)
        self.inside -= 1
        return COST


def test_ten_that_ask_at_once_measure_once() -> None:
    known, measure = MeasuredOnce(), Counting()
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: known.once("resnet18", measure), range(10)))
    assert found == [COST] * 10
    assert (measure.times, repr(known)) == (1, "<MeasuredOnce 1 results>")


def test_two_never_measure_at_once() -> None:
    known, measure = MeasuredOnce(), Counting()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: known.once(key, measure), range(3)))
        list(pool.map(lambda _: known.alone(measure), range(3)))
    assert (measure.times, measure.most) == (6, 1)


def test_an_error_is_not_remembered_and_lets_the_next_in() -> None:
    known = MeasuredOnce()

    def fail() -> Cost:
        raise StoreError("damaged")

    with pytest.raises(StoreError, match="damaged"):
        known.once("a", fail)
    with pytest.raises(StoreError, match="damaged"):
        known.alone(fail)
    assert known.once("a", lambda: COST) == COST


def test_the_oldest_goes_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MOST_RESULTS", 2)
    known, measure = MeasuredOnce(), Counting()
    for key in ("a", "b", "c", "b", "a"):
        known.once(key, measure)
    assert measure.times == 4
