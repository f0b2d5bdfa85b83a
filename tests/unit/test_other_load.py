"""Whether other programs disturb a measurement, by given figures: two looks, the cores seen, and ours."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from coe.profiler import other_load
from coe.profiler.other_load import LoadWatch, OtherLoad, ProcessorTimes, between, disturbs


def times(
    at_s: float, cores_s: float, own_s: float, others: Mapping[int, float] | None = None, began_s: float = 1.0
) -> ProcessorTimes:
    named = {(pid, began_s): (f"p{pid}", total_s) for pid, total_s in (others or {}).items()}
    return ProcessorTimes(at_s, cores_s, own_s, named)


def test_what_is_not_ours_is_of_others() -> None:
    load = between(times(10, 100, 40, {7: 5.0, 8: 1.0, 9: 3.0}), times(14, 108, 43, {7: 9.0, 8: 1.1, 9: 3.6}), 2)
    assert load.cores == pytest.approx(1.25)  # 8 s of the cores in 4 s, 3 of them ours
    assert [(name, pid, round(cores, 2)) for name, pid, cores in load.most] == [("p7", 7, 1.0), ("p9", 9, 0.15)]


def test_a_process_that_came_or_has_a_used_number_counts_without_a_name() -> None:
    before = times(0, 0, 0, {7: 5.0})
    assert between(before, times(2, 2, 0, {8: 2.0}), 2) == OtherLoad(1.0)
    assert between(before, times(2, 2, 0, {7: 6.5}, began_s=9.0), 2) == OtherLoad(1.0)


def test_our_own_time_is_no_load_and_clocks_that_stand_say_nothing() -> None:
    assert between(times(0, 0, 0), times(2, 4, 4.1), 2).cores == 0
    assert between(times(5, 0, 0), times(5, 4, 0), 2).cores == 0
    assert between(times(0, 0, 0), times(1, 2.1, 0), 2).cores == 2  # counted in steps of 10 ms


@pytest.mark.parametrize(
    ("cores", "usable", "seen", "is_disturbed"),
    [
        (0.09, 2, 2, False),  # what a quiet system does
        (0.11, 2, 2, True),
        (1.0, 16, 16, True),
        (0.7, 16, 16, False),
        (3.0, 4, 16, False),  # a container with a quota of 4 of 16 cores: others run on the rest
        (12.5, 4, 16, True),
    ],
)
def test_others_disturb_if_they_take_our_cores(cores: float, usable: int, seen: int, is_disturbed: bool) -> None:
    assert disturbs(OtherLoad(cores), usable, seen) is is_disturbed


def test_each_step_has_the_load_of_its_own_time() -> None:
    looks = iter([times(0, 0, 0), times(1, 1, 0), times(1, 1, 0), times(5, 5, 4), times(5, 5, 4), times(7, 8, 6)])
    watch = LoadWatch(lambda: next(looks), usable=2, seen=2)
    waited: list[float] = []
    found = watch.before(waited.append)
    assert found is not None
    assert found.cores == 1.0
    assert waited == [other_load.LOOK_S]
    watch.step("resnet18")
    watch.step("resnet18")
    watch.step("confirming")  # 4 s, all of them ours
    watch.end()
    watch.end()
    looks = iter([times(7, 8, 6), times(7.1, 9, 6)])
    watch.step("too short to tell")
    watch.end()
    assert {what: load.cores for what, load in watch.disturbed.items()} == {"confirming": 0.5}
    quiet = LoadWatch(lambda: times(0, 0, 0), usable=2, seen=2)
    assert quiet.before(waited.append) is None


def test_a_look_at_this_machine_has_us_and_not_us_among_others() -> None:
    look = other_load.look()
    assert look.own_s > 0
    assert os.getpid() not in {pid for pid, _ in look.others_s}
