"""The backlog's order and its books."""

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Stage
from coe.scheduler.backlog import Backlog


def filled(text, *, join):
    """Build a backlog of stages 0, 1, 2, ... of the experts that the letters name."""
    backlog = Backlog()
    for index, expert in enumerate(text):
        backlog.add(Stage(index, expert), 1.0, join=join)
    return backlog


def shape(backlog):
    return [(group.expert, [stage.request_id for stage in group]) for group in backlog.groups()]


def test_a_stage_joins_the_latest_group_of_its_expert_or_stands_at_the_end_and_if_put_back_in_front_alone():
    assert shape(filled("abacab", join=True)) == [("a", [0, 2, 4]), ("b", [1, 5]), ("c", [3])]
    assert shape(filled("aabacc", join=False)) == [("a", [0, 1]), ("b", [2]), ("a", [3]), ("c", [4, 5])]
    backlog = filled("aba", join=False)
    backlog.add(Stage(3, "b"), 1.0, join=False)
    backlog.add(Stage(4, "a"), 1.0, join=True)
    assert shape(backlog) == [("a", [0]), ("b", [1]), ("a", [2, 4]), ("b", [3])]
    backlog = filled("ab", join=True)
    backlog.put_back((Stage(7, "a"), Stage(8, "a")), 0.5)
    backlog.add(Stage(9, "a"), 1.0, join=True)
    assert shape(backlog) == [("a", [7]), ("a", [8]), ("a", [0, 9]), ("b", [1])]
    alone = Backlog()
    alone.put_back((Stage(7, "a"),), 0.5)
    alone.add(Stage(8, "a"), 1.0, join=False)
    assert shape(alone) == [("a", [7]), ("a", [8])]


def test_what_is_taken_or_dropped_leaves_the_rest_in_place_and_takes_its_charge():
    backlog = filled("aab", join=True)
    group = backlog.latest("a")
    assert [stage.request_id for stage in backlog.take(group, 1, 5.0)] == [0]
    assert (shape(backlog), backlog.pending_s, group.started_s) == ([("a", [1]), ("b", [2])], 2.0, 5.0)
    backlog.take(group, 1, 6.0)
    assert (backlog.latest("a"), group.started_s, backlog.waiting("a"), len(backlog)) == (None, 5.0, 0, 1)
    backlog.check()
    backlog = filled("abac", join=False)
    backlog.put_back((Stage(9, "a"),), 0.5)
    assert [stage.request_id for stage in backlog.drop("a")] == [9, 0, 2]
    assert (shape(backlog), backlog.pending_s, backlog.latest("a")) == ([("b", [1]), ("c", [3])], 2.0, None)
    assert backlog.drop("z") == ()


def test_rounding_does_not_pile_up_when_it_runs_empty():
    backlog = Backlog()
    for _ in range(10):
        for number, charge in enumerate((0.1, 0.2, 0.3)):
            backlog.add(Stage(number, "a"), charge, join=True)
        group = backlog.latest("a")
        backlog.take(group, 1, 0.0)
        backlog.take(group, 2, 0.0)
        backlog.add(Stage(0, "a"), 0.7, join=True)
        assert backlog.pending_s == 0.7
        backlog.drop("a")


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcd"), st.booleans(), st.floats(0, 9)),
        st.tuples(st.just("take"), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.just("put_back"), st.sampled_from("abcd"), st.integers(1, 3)),
        st.tuples(st.just("drop"), st.sampled_from("abcd")),
        st.tuples(st.just("hurry"), st.sampled_from("abcd"), st.integers(0, 20), st.sampled_from((1.0, 2.0, math.inf))),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_no_stage_is_lost_or_doubled_and_totals_are_sums(operations):
    backlog, waiting, number = Backlog(), {}, 0
    due = defaultdict(lambda: math.inf)
    for name, *arguments in operations:
        match name, arguments:
            case "add", (expert, join, charge):
                backlog.add(Stage(number, expert), charge, join=join, due_s=due[number, expert])
                waiting[number] = charge
                number += 1
            case "take", (which, count):
                groups = list(backlog.groups())
                if groups:
                    group = groups[which % len(groups)]
                    for stage in backlog.take(group, min(count, len(group)), 0.0):
                        del waiting[stage.request_id]
            case "put_back", (expert, count):
                backlog.put_back(tuple(Stage(number + i, expert) for i in range(count)), 0.5)
                waiting.update({number + i: 0.5 for i in range(count)})
                for i in range(count):
                    backlog.hurry(number + i, expert, due[number + i, expert], math.inf)
                number += count
            case "hurry", (expert, request, due_s):
                backlog.hurry(request, expert, due_s, due[request, expert])
                due[request, expert] = due_s
            case "drop", (expert,):
                for stage in backlog.drop(expert):
                    assert stage.expert == expert
                    del waiting[stage.request_id]
        backlog.check()
        assert sorted(i for _, ids in shape(backlog) for i in ids) == sorted(waiting)
        for group in backlog.groups():
            times = [due[stage.request_id, stage.expert] for stage in group]
            assert times == sorted(times), "who is due first runs first"
            assert group.due_s == times[0]
        assert backlog.pending_s == pytest.approx(sum(waiting.values()), abs=1e-9)
        assert len(backlog) == len(waiting) == sum(backlog.waiting(expert) for expert in "abcd")
