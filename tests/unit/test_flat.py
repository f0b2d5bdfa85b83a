"""What a decision looks at does not grow with the experts that there are nor with what waits: counted, not timed."""

import sys
from collections import OrderedDict
from typing import Any

import pytest
from tables import with_slow_rows

from coe.lab.cli import bench_scale as scale
from coe.scheduler.backlog import Backlog
from coe.scheduler.controller import Controller
from coe.scheduler.demand import Demand
from coe.scheduler.policies.late_binding import Gain, Ready
from coe.scheduler.policies.next_use import NextUse
from coe.scheduler.pool import ModelPool
from coe.scheduler.residency import Residency


class Looks:
    """How many entries of pools and groups of backlogs were looked at while events were handled."""

    def __init__(self):
        self.counting = False
        self.events = self.attempts = self.experts = self.groups = 0

    @property
    def per_attempt(self):
        return self.experts / self.attempts

    @property
    def per_event(self):
        return self.groups / self.events

    def book(self, what, content):
        """Return a book that counts the entries that are passed over when it is gone through."""
        looks = self

        class Book(OrderedDict[Any, Any]):
            def __iter__(self):
                for key in super().__iter__():
                    if looks.counting:
                        setattr(looks, what, getattr(looks, what) + 1)
                    yield key

            def items(self):
                return ((key, self[key]) for key in self)

            def values(self):
                return _Values(self)

        return Book(content)


class _Values:
    """Values in either direction; only the first is gone through by decisions."""

    def __init__(self, book):
        self._book = book

    def __iter__(self):
        return (self._book[key] for key in self._book)

    def __reversed__(self):
        return (self._book[key] for key in reversed(self._book))


@pytest.fixture
def looks(monkeypatch):
    """Count what any controller made in a test looks at."""
    found = Looks()
    pool_init, backlog_init = ModelPool.__init__, Backlog.__init__
    evictable, handle, make_room = ModelPool.evictable, Controller.handle, Residency.make_room

    def new_pool(self, *arguments):
        pool_init(self, *arguments)
        self._entries = found.book("experts", self._entries)
        self._recency = found.book("experts", self._recency)

    def new_backlog(self, *arguments):
        backlog_init(self, *arguments)
        self._groups = found.book("groups", self._groups)

    def asked(self, expert):
        found.experts += 1
        return evictable(self, expert)

    def handled(self, *arguments):
        found.events += 1
        found.counting = True
        try:
            return handle(self, *arguments)
        finally:
            found.counting = False

    def counting(what, kind):
        rank = kind.rank

        def ranked(*arguments):
            for one in rank(*arguments):
                setattr(found, what, getattr(found, what) + 1)
                yield one

        monkeypatch.setattr(kind, "rank", ranked)

    counting("groups", NextUse)
    counting("groups", Ready)
    counting("groups", Gain)
    changed = Demand.changed

    def told(self, expert):
        # What is told once is ranked anew at most once.
        found.groups += found.counting
        changed(self, expert)

    monkeypatch.setattr(Demand, "changed", told)

    def made_room(self, *arguments):
        found.attempts += 1
        return make_room(self, *arguments)

    monkeypatch.setattr(ModelPool, "__init__", new_pool)
    monkeypatch.setattr(Backlog, "__init__", new_backlog)
    monkeypatch.setattr(ModelPool, "evictable", asked)
    monkeypatch.setattr(Controller, "handle", handled)
    monkeypatch.setattr(Residency, "make_room", made_room)
    return found


def looked(looks, experts, requests, name):
    """Return experts looked at for an attempt to make room, and groups looked at for an event."""
    looks.events = looks.attempts = looks.experts = looks.groups = 0
    scale.measure(experts, requests, name=name)
    assert looks.attempts > 100
    assert looks.experts > 0
    assert looks.groups > 0
    return looks.per_attempt, looks.per_event


@pytest.mark.parametrize(
    "name", with_slow_rows(["late-binding", "coserve", "coserve-em", "coserve-none", "samba-parallel"], fast=1)
)
def test_ten_times_the_experts_are_no_more_to_look_at(looks, name):
    few, many = looked(looks, 150, 600, name), looked(looks, 1500, 600, name)
    assert many[0] <= 2 * few[0]
    assert many[1] <= 2 * few[1]


@pytest.mark.parametrize("name", with_slow_rows(["late-binding", "coserve", "coserve-none", "samba-parallel"], fast=1))
def test_ten_times_the_waiting_stages_are_no_more_to_look_at(looks, name):
    few, many = looked(looks, 200, 400, name), looked(looks, 200, 4000, name)
    assert many[0] <= 2 * few[0]
    assert many[1] <= 2 * few[1]


@pytest.mark.parametrize(("name", "most"), with_slow_rows([("late-binding", 172), ("coserve", 188)], fast=1))
def test_a_stage_costs_few_calls(name, most, monkeypatch):
    """Calls of Python functions while events are handled: the same number on a busy machine. A tenth is to spare."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    def handled(self, *arguments):
        sys.setprofile(count)
        try:
            return handle(self, *arguments)
        finally:
            sys.setprofile(None)

    handle = Controller.handle
    monkeypatch.setattr(Controller, "handle", handled)
    measured = scale.measure(300, 1000, name=name)
    stages = measured.us_per_request * measured.requests / measured.us_per_stage
    assert 50 < calls / stages <= most
