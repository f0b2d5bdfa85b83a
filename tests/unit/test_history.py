"""What policies can see of the past: images with their findings, and how often experts ran."""

import random

import pytest
from lines import board

from coe.scheduler import demand
from coe.scheduler.costs import Cost
from coe.scheduler.demand import Demand
from coe.scheduler.history import HistoryWatcher
from coe.testing import VirtualLine, pools_of

COST = Cost(per_image_s=0.5, base_s=0.5, load_s=1.0, weights_bytes=10, activation_bytes=1)


class Diary(HistoryWatcher):
    """Writes down what it is told, with the findings that the image has at that moment."""

    def __init__(self):
        self.lines = []

    def arrived(self, image):
        self.lines.append(f"{image.request.refdes} came to place {image.place} at {image.arrived_s:g} s")

    def found(self, image, finding):
        labels = [f"{each.expert}={each.label}" for each in image.findings.values()]
        assert image.findings[finding.expert] is finding
        self.lines.append(f"{image.request.refdes}: {', '.join(labels)}")

    def answered(self, image):
        self.lines.append(f"{image.request.refdes} answered")


def test_a_watcher_is_told_of_each_image_and_finding():
    line = VirtualLine(board({"A": 5}, {"a": "x"}), {"a": COST, "x": COST}, pools_of(1, 30, 8), strategy="late-binding")
    history, diary = line.controller.history, Diary()
    history.watch(diary)
    line.arrive(10.0, "A", serial="S1", refdes="R1")
    line.arrive(10.1, "none such", serial="S1", refdes="R2")
    line.arrive(12.5, "A", serial="S1", refdes="R3")
    line.reject(12.6, "A", "not a picture")
    line.run()
    assert diary.lines == [
        *("R1 came to place 0 at 10 s", "R2 came to place 1 at 10.1 s", "R2 answered"),
        *("R1: a=ok", "R1: a=ok, x=ok", "R1 answered"),
        *("R3 came to place 2 at 12.5 s", "R3: a=ok", "R3: a=ok, x=ok", "R3 answered"),
    ]
    assert (history.images, dict(history.under_way)) == (3, {})


# How often images need an expert, counted over years


SHARES = {"a": 0.9, "b": 0.1, "c": 0.5}


def usage_after(images):
    counted, chance = Demand(dict.fromkeys(SHARES, 0.5), {name: {} for name in SHARES}), random.Random(0)
    for _ in range(images):
        counted.arrived()
        for name, share in SHARES.items():
            if chance.random() < share:
                counted.opened(name)
                counted.closed(name)
    counted.check(idle=True)
    return {name: counted.usage(name) for name in SHARES}


def test_weights_stay_finite_for_years_and_usage_comes_near_the_share_of_images(monkeypatch):
    counted = Demand({"a": 0.5}, {"a": {}})
    for _ in range(200_000):
        counted.arrived()
    assert 0 <= counted.usage("a") < 1e-6
    assert counted._weight <= 2 * demand._REBASE
    expected = usage_after(3000)
    monkeypatch.setattr(demand, "_REBASE", 1.5)
    assert usage_after(3000) == pytest.approx(expected, rel=1e-9)
    assert usage_after(20_000) == pytest.approx(SHARES, abs=0.15)
