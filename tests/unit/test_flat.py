"""What a decision looks at does not grow with the experts that there are nor with what waits: counted, not timed."""

import sys

import pytest
from tables import with_slow_rows

from coe.lab.cli import bench_scale as scale
from coe.scheduler.controller import Controller
from coe.scheduler.policies.late_binding import Gain, Ready
from coe.scheduler.policies.next_use import NextUse


@pytest.fixture
def counted(monkeypatch):
    """Return a function that simulates a board, and gives what it measured and the steps by which events are handled.

    Steps are calls and lines of Python and candidates that policies rank: the same on a busy machine. A loop over a
    book of experts, or of what waits, takes a line for each entry.
    """
    handle, steps = Controller.handle, {"call": 0, "line": 0, "ranked": 0}

    def count(frame, event, argument):
        if event in steps:
            steps[event] += 1
        return count

    def handled(self, *arguments):
        before = sys.gettrace()
        sys.settrace(count)
        try:
            return handle(self, *arguments)
        finally:
            sys.settrace(before)

    def counting(rank):
        def ranked(*arguments):
            for candidate in rank(*arguments):
                steps["ranked"] += 1
                yield candidate

        return ranked

    monkeypatch.setattr(Controller, "handle", handled)
    for kind in (NextUse, Ready, Gain):
        monkeypatch.setattr(kind, "rank", counting(kind.rank))

    def run(experts, requests, name):
        steps.update(dict.fromkeys(steps, 0))
        return scale.measure(experts, requests, name=name), dict(steps)

    return run


@pytest.mark.parametrize(
    "name", with_slow_rows(["late-binding", "coserve", "coserve-em", "coserve-none", "samba-parallel"], fast=1)
)
def test_ten_times_the_experts_or_the_waiting_stages_are_no_more_to_look_at(counted, name):
    for sizes in (((100, 100), (1000, 100)), ((100, 100), (100, 1000))):
        few, many = (counted(experts, requests, name) for experts, requests in sizes)
        for step, most in (("line", 1.5), ("ranked", 2)):
            assert many[1][step] / many[0].events <= most * few[1][step] / few[0].events


@pytest.mark.parametrize(("name", "most"), with_slow_rows([("late-binding", 172), ("coserve", 188)], fast=1))
def test_a_stage_costs_few_calls(counted, name, most):
    """A tenth is to spare."""
    measured, found = counted(300, 1000, name)
    stages = measured.us_per_request * measured.requests / measured.us_per_stage
    assert 50 < found["call"] / stages <= most
