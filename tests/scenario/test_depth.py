"""Two batches of an executor under way: the next is on the device when a batch ends, and begins then."""

from dataclasses import replace

import pytest
from lines import ENGINE, arrive, board, cost, inspect, log_of

from coe.scheduler.pool import State
from coe.testing import Troubles, VirtualLine, pools_of

BOARD = board({"A": 3, "B": 2, "C": 1})


def line_of(capacity=34, strategy="late-binding", depth=2, **troubles):
    plan = pools_of(1, capacity, 4)
    plan = replace(plan, executors=tuple(replace(executor, depth=depth) for executor in plan.executors))
    costs = {expert: cost() for expert in BOARD.experts}
    return VirtualLine(BOARD, costs, plan, strategy=strategy, troubles=Troubles(**troubles))


def test_the_next_batch_is_given_out_while_one_runs_and_begins_when_that_ends():
    line = line_of()
    assert log_of(line, (10.0, "AAAB"), (10.1, "C"), after=10.0, without="late") == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu0 run a x1"),
        # No sooner: there is room for two. The second batch begins when the first ends.
        (10.3, "reply 0 OK"),
        (10.3, "cpu0 run a x1"),
        (10.6, "reply 1 OK"),
        (10.6, "cpu0 run b x1"),
        (10.9, "reply 2 OK"),
        (10.9, "cpu0 run c x1"),
        (11.2, "reply 3 OK"),
        (11.5, "reply 4 OK"),
    ]


@pytest.mark.parametrize("strategy", ENGINE)
def test_the_expert_of_a_batch_that_waits_for_its_turn_stays(strategy):
    line, pinned = line_of(14, strategy), []
    check = line.controller.check

    def watched(*, idle=False):
        check(idle=idle)
        for executor in line.controller.executors.values():
            for flight in executor.flights:
                assert executor.pool.state(flight.batch.expert) is State.READY
                assert not executor.pool.evictable(flight.batch.expert)
            pinned.append(len(executor.flights))

    line.controller.check = watched
    inspect(line, (10.0, "AABBCCAA"), (10.5, "CBA"))
    assert max(pinned) <= 2
    assert {result.error for result in line.results.values()} == {None}


def test_a_batch_that_fails_does_not_spoil_the_batch_behind_it():
    line = line_of(bad_stages=frozenset({(0, "a")}))
    inspect(line, (10.0, "AB"))
    assert [line.results[number].error is None for number in (0, 1)] == [False, True]
    assert log_of(line, without="late", after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu0 run b x1"),
        (10.3, "reply 0 error"),
        (10.6, "reply 1 OK"),
    ]


def test_when_the_device_is_lost_both_batches_are_answered():
    line = line_of()
    arrive(line, 10.0, "AB")
    line.lose(10.1, "cpu")
    line.run()
    assert sorted(line.results) == [0, 1]
    assert all("cpu was lost" in result.error for result in line.results.values())


def test_a_line_that_is_stopped_finishes_both():
    line = line_of()
    arrive(line, 10.0, "ABC")
    line.stop(10.1)
    line.run()
    assert [line.results[number].error is None for number in range(3)] == [True, True, False]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("max_wait_s", "every_s", "image_bytes", "late_bytes"), [(0.5, 0.1, 4, 38), (5, 0.2, 4, 38), (0.5, 0.1, 8, 20)]
)
def test_an_image_that_is_overdue_does_not_wait_while_batches_follow_each_other(
    depth, max_wait_s, every_s, image_bytes, late_bytes
):
    """Its expert needs the places of two others, or of what their batches take beyond what is set aside.

    Images for both, themselves in no hurry, come without end.
    """
    of_image = cost(activation_bytes=image_bytes)
    costs = {"a": replace(of_image, weights_bytes=1), "c": replace(of_image, weights_bytes=late_bytes)}
    plan = pools_of(1, 49, 11)
    plan = replace(plan, executors=tuple(replace(executor, depth=depth) for executor in plan.executors))
    line = VirtualLine(
        board({"A": 3}, {"a": "[b, c]"}), costs | {"b": of_image}, plan, strategy="late-binding", max_wait_s=max_wait_s
    )
    for number in range(200):
        line.arrive(number * every_s, "A")
    line.run()
    assert line.results[0].latency_s < 10
