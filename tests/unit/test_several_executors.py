"""Several executors at once: how many were measured, and what is said when one fails."""

from __future__ import annotations

import threading

import pytest

from coe.core import Expert
from coe.errors import ConfigError, DeviceFull
from coe.profiler import several_executors
from coe.profiler.measure import MeasuredExpert, Target
from coe.profiler.profiling import ProgressSteps
from coe.profiler.several_executors import joint_batch_s, joint_speeds
from coe.store import kinds
from coe.store.store import Store

EXPERT = Expert("e", "narrow", ("ok", "bad"), 32, "t/e")


class Failing:
    """A device on which the second executor fails while the first one waits for it."""

    def __init__(self) -> None:
        self.first_is_in = threading.Event()

    def run(self, executor, pool, expert, images):
        if executor.endswith("0"):
            self.first_is_in.set()
            return []
        self.first_is_in.wait()
        raise DeviceFull("no room for weights that run")

    def __getattr__(self, name):
        return lambda *arguments, **options: None


def test_the_error_of_who_failed_is_told_not_that_of_who_waited() -> None:
    with pytest.raises(DeviceFull, match="no room"):
        joint_batch_s(Failing(), EXPERT, [], 2)


@pytest.mark.parametrize("error", [ConfigError("too small"), DeviceFull("too small")])
def test_executors_are_measured_together_as_long_as_they_fit(tmp_path, monkeypatch, error) -> None:
    tried: list[int] = []

    def speed(subject, executors, *, images):
        tried.append(executors)
        if executors > 2:
            raise error
        return 1.5

    monkeypatch.setattr(several_executors, "joint_speed", speed)
    subject = MeasuredExpert(EXPERT, kinds.resolve("narrow"), Store(tmp_path / "store"), Target("cuda", 1))
    assert joint_speeds(subject, (), 4) == (1.0, 1.5)
    # Those are known now; under another budget more may fit.
    assert joint_speeds(subject, (1.0, 1.5), 4) == (1.0, 1.5)
    assert joint_speeds(subject, (1.0, 1.5, 1.6, 1.6), 4) == (1.0, 1.5, 1.6, 1.6)
    assert tried == [2, 3, 3]


def test_steps_that_were_left_out_count_as_done() -> None:
    told: list[tuple[str, float]] = []
    steps = ProgressSteps(print, lambda what, done, total: told.append((what, done)))
    steps.expect([("a", 1.0), ("b", 2.0), ("c", 4.0)])
    steps.begin("a")
    steps.begin("c")
    steps.part(0.5)
    assert told == [("a", 0.0), ("c", 3.0), ("c", 5.0)]
