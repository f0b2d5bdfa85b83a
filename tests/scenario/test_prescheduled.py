"""A recorded run once more without scheduling: the same commands and verdicts, and an end whatever happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import arrive, board, cost, log_of

from apps.paper.prescheduled import Prescheduled
from coe.board.rules import Rules
from coe.errors import ConfigError
from coe.scheduler.costs import Cost
from coe.scheduler.events import Arrived, Command, Event, Evict, Load, Loaded, Run, Why
from coe.scheduler.plan import ExecutorSpec, Plan
from coe.scheduler.strategies import STRATEGIES
from coe.testing import Troubles, VirtualLine, pools_of

CHAIN = {"a": "c", "b": "c"}
Trace = list[tuple[float, Event | None, list[Command]]]


class Line(VirtualLine):
    """A line that keeps its trace, and that repeats another's if it is given one."""

    def __init__(
        self,
        rules: Rules,
        capacity: int,
        executors: int = 1,
        costs: Any = None,
        shared: bool = False,
        **options: Any,
    ) -> None:
        self.trace: Trace = []
        prices: Mapping[str, Cost] = {name: cost() for name in rules.experts} | dict(costs or {})
        self.plan = pools_of(executors, capacity, 4)
        if shared:
            pool = self.plan.pools[0]
            workers = tuple(ExecutorSpec(each.id, each.device, pool.id) for each in self.plan.executors)
            self.plan = Plan((pool,), workers)
        super().__init__(rules, prices, self.plan, **options)

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        self.trace.append((now, event, commands))
        super().observe(event, commands, now, control_s)

    def repeat(self, trace: Trace) -> Prescheduled:
        repeated = Prescheduled(trace, self.board.router, self.controller.plan, self.costs)
        self.controller = self._simulator.controller = repeated  # type: ignore[assignment]
        return repeated


def recorded(line: Line) -> Trace:
    line.run()
    return line.trace


def again(line: Line, trace: Trace) -> Prescheduled:
    return line.repeat(trace)


def commands(line: Line, kind: type) -> list[Any]:
    return [one for _, _, all_of in line.history for one in all_of if isinstance(one, kind)]


def batches(line: Line) -> dict[str, list[Any]]:
    return {id: [run.batch for run in commands(line, Run) if run.executor == id] for id in line.controller.executors}


def verdicts(line: Line) -> dict[int, Any]:
    return {id: (result.verdict, result.findings, result.error) for id, result in line.results.items()}


def test_a_run_is_repeated_to_the_letter():
    rules = board({"A": 3, "B": 2, "D": 1}, CHAIN)
    first, second = (Line(rules, 34) for _ in range(2))
    for line in (first, second):
        arrive(line, 0.0, "AABDAB")
        arrive(line, 3.0, "DDAB")
    again(second, recorded(first))
    second.run()
    assert log_of(second, without="reply") == log_of(first, without="reply")
    assert verdicts(second) == verdicts(first)


def test_nothing_but_the_first_experts_is_loaded_before_an_image_comes():
    rules = board({"A": 3, "B": 2, "D": 1})
    first, second = (Line(rules, 14) for _ in range(2))
    arrive(first, 5.0, "D")
    arrive(second, 9.0, "D")
    again(second, recorded(first))
    second.run()
    assert second.log == [
        (0.0, "cpu0 load a"),
        (9.0, "cpu0 evict a"),
        (9.0, "cpu0 load d"),
        (10.0, "cpu0 run d x1"),
        (10.3, "reply 0 OK"),
    ]


def test_nobody_looks_ahead():
    """A load waits for the images that were there, and for the batches that were over, when it was decided."""
    rules = board({"A": 3, "B": 2, "D": 1, "E": 1})
    first = Line(rules, 24, strategy="samba")
    second = Line(rules, 24, strategy="samba", costs={"d": cost(base_s=2.9)})
    for line, late_s in ((first, 4.0), (second, 9.0)):
        arrive(line, 0.0, "BA")
        arrive(line, late_s, "DE")
    again(second, recorded(first))
    second.run()
    assert log_of(first, after=4.0) == [
        (4.0, "cpu0 evict b"),
        (4.0, "cpu0 load d"),
        (5.0, "cpu0 run d x1"),
        (5.3, "cpu0 evict a"),
        (5.3, "cpu0 load e"),
        (6.3, "cpu0 run e x1"),
    ]
    assert log_of(second, after=3.0) == [
        (9.0, "cpu0 evict b"),
        (9.0, "cpu0 load d"),
        (10.0, "cpu0 run d x1"),
        # Nobody runs on `a` while `d` takes its time; it was evicted when `d` was over, so it is again.
        (13.0, "cpu0 evict a"),
        (13.0, "cpu0 load e"),
        (14.0, "cpu0 run e x1"),
    ]


def test_a_slower_load_delays_and_the_order_stays():
    rules = board({"A": 3, "B": 2})
    first = Line(rules, 14)
    second = Line(rules, 14, costs={"b": cost(load_s=3.0)})
    for line in (first, second):
        arrive(line, 0.0, "ABA")
    again(second, recorded(first))
    second.run()
    assert batches(second) == batches(first)
    assert second.results[1].latency_s == pytest.approx(first.results[1].latency_s + 2.0)


@st.composite
def lines(draw: st.DrawFn, *, otherwise: bool = False) -> list[Line]:
    """Two lines of the same board, plan and images, whose loads, batches, evictions and arrivals take other times.

    With `otherwise`, experts also say and suffer other things on the one than on the other.
    """
    rules = board({letter: draw(st.integers(1, 9)) for letter in "ABDEF"}, CHAIN)
    strategy = draw(st.sampled_from(sorted(STRATEGIES)))
    executors = 1 if STRATEGIES[strategy].single else draw(st.integers(1, 3))
    capacity, shared = draw(st.integers(14, 60)), draw(st.booleans())
    components = draw(st.lists(st.sampled_from("ABDEF"), max_size=25))
    seconds = st.sampled_from([0.0, 0.05, 0.7, 2.5])
    places = st.tuples(st.integers(0, 24), st.sampled_from("abcdef"))
    said = dict.fromkeys(draw(st.sets(places, max_size=12)), "bad")
    made = []
    for _ in range(2):
        troubles = Troubles()
        if otherwise:
            said = dict.fromkeys(draw(st.sets(places, max_size=12)), "bad")
            bad_loads = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3), max_size=2))
            troubles = Troubles(bad_loads, frozenset(draw(st.sets(places, max_size=4))))
        prices = {e: cost(load_s=draw(seconds), base_s=draw(seconds), per_image_s=0.1) for e in rules.experts}
        options = {"strategy": strategy, "findings": said, "evict_s": draw(seconds), "shared": shared}
        line = Line(rules, capacity, executors, prices, troubles=troubles, **options)
        now = 0.0
        for component in components:
            now += draw(seconds)
            line.arrive(now, component)
        made.append(line)
    return made


@given(lines())
def test_other_times_change_no_command(pair):
    first, second = pair
    trace = recorded(first)
    again(second, trace)
    second.run()
    assert verdicts(second) == verdicts(first)
    assert batches(second) == batches(first)
    for kind in (Load, Evict):
        for pool in first.controller.pools:
            assert [c for c in _all(second, kind) if c.pool == pool] == list(_recorded(trace, kind, pool))


def _all(line: Line, kind: type) -> list[Any]:
    return [*(line.loads if kind is Load else commands(line, kind))]


def _recorded(trace: Any, kind: type, pool: str) -> list[Any]:
    return [one for _, _, all_of in trace for one in all_of if isinstance(one, kind) and one.pool == pool]


@given(lines(otherwise=True))
def test_every_image_gets_its_reply_whatever_goes_otherwise(pair):
    """Other findings, loads and batches that fail now and did not, or did and do not now."""
    first, second = pair
    again(second, recorded(first))
    # The line itself proves the books after each step, that all ends, and that no image gets two replies.
    second.run()
    assert set(second.results) == set(first.results)
    for pool in second.controller.pools.values():
        assert pool.peak_bytes <= pool.spec.capacity_bytes


def test_an_image_that_goes_another_way_is_told_so():
    rules = board({"A": 1, "B": 1}, CHAIN)
    first, second = Line(rules, 60, findings={(0, "a"): "bad"}), Line(rules, 60, findings={(1, "b"): "bad"})
    for line in (first, second):
        arrive(line, 0.0, "AB")
    again(second, recorded(first))
    second.run()
    # Image 0 was NG at `a` when it was recorded, so nobody asked `c` about it; image 1 went on to `c`, now it does not.
    assert "did not ask expert 'c' about this image" in second.results[0].error
    assert second.results[1].error is None


def test_an_image_that_was_not_recorded_is_told_so():
    rules = board({"A": 1})
    first, second = Line(rules, 60), Line(rules, 60)
    arrive(first, 0.0, "A")
    arrive(second, 0.0, "AA")
    again(second, recorded(first))
    second.run()
    assert second.results[0].error is None
    assert "did not ask expert 'a' about this image" in second.results[1].error


def test_an_expert_that_cannot_be_loaded_fails_its_images_alone():
    rules = board({"A": 3, "B": 2})
    first, second = Line(rules, 14), Line(rules, 14, troubles=Troubles({"b": 1}))
    for line in (first, second):
        arrive(line, 0.0, "ABA")
    again(second, recorded(first))
    second.run()
    assert second.results[1].error == "expert 'b' cannot be loaded: the disk said no"
    assert [second.results[id].error for id in (0, 2)] == [None, None]


def test_a_line_of_other_executors_is_refused():
    rules = board({"A": 1, "B": 1})
    first = Line(rules, 60, 2)
    arrive(first, 0.0, "AABB")
    with pytest.raises(ConfigError, match="the recorded run had 'cpu1', but this line does not"):
        again(Line(rules, 60), recorded(first))


def test_a_stop_answers_all():
    rules = board({"A": 3, "B": 2})
    first, second = Line(rules, 14), Line(rules, 14)
    for line in (first, second):
        arrive(line, 0.0, "ABABAB")
    again(second, recorded(first))
    second.stop(1.2)
    second.run()
    assert set(second.results) == set(range(6))


def test_initial_loads_come_in_the_recorded_order():
    rules = board({"A": 5, "B": 4, "D": 3, "E": 2})
    first, second = (Line(rules, 24, executors=2) for _ in range(2))
    trace = recorded(first)
    started = again(second, trace).start(0.0)
    assert started == trace[0][2]
    assert all(load.why is Why.INITIAL for load in started)


def test_the_books_say_who_waits():
    rules: Rules = board({"A": 1})
    line = Line(rules, 60)
    arrive(line, 0.0, "A")
    repeated = again(Line(rules, 60), recorded(line))
    assert repr(repeated) == "<Prescheduled 0 requests under way, 1 to come>"
    repeated.handle(Loaded("cpu0", repeated.start(0.0)[0].expert), 0.0)
    request = next(event.request for _, event, _ in line.history if isinstance(event, Arrived))
    repeated.handle(Arrived(request), 0.0)
    assert repeated.under_way == 1
