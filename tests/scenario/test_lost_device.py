"""A device is lost in the middle: others do its work, every image gets its reply, and all books are right."""

import pytest
from lines import ENGINE, arrive, board, cost, inspect, log_of

from coe.core import Verdict
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.testing import VirtualLine

BOARD = board({"A": 3, "B": 2, "C": 1}, {"a": "c"})


def line_of_two(strategy="coserve", capacity=24, devices=("cuda", "cpu")):
    """A line with an executor on each device, where the first is much quicker."""
    made = Plan(
        tuple(PoolSpec(f"{device}0", device, capacity, 4) for device in devices),
        tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in devices),
    )
    return VirtualLine(BOARD, {expert: cost() for expert in "abc"}, made, strategy=strategy)


@pytest.mark.parametrize("lost_at_s", [0.5, 9.0, 10.05, 10.4, 11.2, 13.0])
@pytest.mark.parametrize("strategy", ENGINE)
def test_every_image_has_its_verdict_from_the_device_that_is_left(strategy, lost_at_s):
    line = line_of_two(strategy)
    arrive(line, 10.0, "ABCABCAABBCCA")
    arrive(line, 12.0, "CBA")
    line.lose(lost_at_s, "cuda")
    line.run()
    assert [result.verdict for result in line.results.values()] == [Verdict.OK] * 16
    begun = [what for when, what in line.log if when > lost_at_s and what.startswith("cuda")]
    assert not begun or "load" in " ".join(begun)


def test_a_batch_that_was_running_runs_again_elsewhere():
    line = line_of_two()
    arrive(line, 10.0, "BB")
    line.lose(10.1, "cuda")
    line.run()
    assert log_of(line, after=10.0) == [(10.0, "cuda0 run b x1"), (10.1, "cpu0 load b"), (11.1, "cpu0 run b x2")]
    assert [result.latency_s for result in line.results.values()] == [pytest.approx(1.5)] * 2


def test_where_no_device_is_left_the_reason_is_said():
    line = line_of_two(devices=("cuda",))
    arrive(line, 10.0, "AB")
    line.lose(10.1, "cuda")
    inspect(line, (12.0, "C"))
    assert {result.error for result in line.results.values()} == {"cuda was lost: it fell off the bus"}
    assert not any(line.controller.pools["cuda0"].by_arrival())


def test_losing_a_device_twice_is_losing_it_once():
    line = line_of_two()
    arrive(line, 10.0, "ABC")
    line.lose(10.1, "cuda")
    line.lose(10.2, "cuda")
    line.run()
    assert [result.verdict for result in line.results.values()] == [Verdict.OK] * 3


@pytest.mark.parametrize("devices", [("cuda",), ("cuda", "cpu")])
def test_images_that_are_due_are_answered_too(devices):
    line = line_of_two("late-binding", devices=devices)
    for component in "ABCAB":
        line.arrive(10.0, component, serial="SN1", due_s=13.0)
    line.lose(10.1, "cuda")
    line.run()
    assert len(line.results) == 5
    assert {result.error for result in line.results.values()} == {
        None if len(devices) > 1 else "cuda was lost: it fell off the bus"
    }
