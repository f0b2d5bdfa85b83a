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
    """Return a function that simulates a board, and gives the calls and lines of Python by which events are handled.

    They are the same on a busy machine. A loop over a book of experts or of what waits takes a line for each entry.
    """
    handle = Controller.handle
    now = {"call": 0, "line": 0}

    def count(frame, event, argument):
        if event in now:
            now[event] += 1
        return count

    def handled(self, *arguments):
        before = sys.gettrace()
        sys.settrace(count)
        try:
            return handle(self, *arguments)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(Controller, "handle", handled)
    for kind in (NextUse, Ready, Gain):  # books in C take a line for each entry, too
        monkeypatch.setattr(kind, "rank", lambda *given, rank=kind.rank: (one for one in rank(*given)))

    def run(experts, requests, name):
        now.update(call=0, line=0)
        return scale.measure(experts, requests, name=name), dict(now)

    return run


def lines_of_an_event(counted, experts, requests, name):
    measured, found = counted(experts, requests, name)
    return found["line"] / measured.events


@pytest.mark.parametrize(
    "name", with_slow_rows(["late-binding", "coserve", "coserve-em", "coserve-none", "samba-parallel"], fast=1)
)
def test_ten_times_the_experts_or_the_waiting_stages_are_no_more_to_look_at(counted, name):
    few, many = (lines_of_an_event(counted, experts, 100, name) for experts in (100, 1000))
    assert many <= 1.5 * few
    few, many = (lines_of_an_event(counted, 100, requests, name) for requests in (100, 1000))
    assert many <= 1.5 * few


@pytest.mark.parametrize(("name", "most"), with_slow_rows([("late-binding", 172), ("coserve", 188)], fast=1))
def test_a_stage_costs_few_calls(counted, name, most):
    """A tenth is to spare."""
    measured, found = counted(300, 1000, name)
    stages = measured.us_per_request * measured.requests / measured.us_per_stage
    assert 50 < found["call"] / stages <= most
