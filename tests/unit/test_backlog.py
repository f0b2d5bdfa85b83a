"""What waits in the scheduler: stages in their backlog, loads in their queue."""

import math
from collections import defaultdict, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Stage
from coe.scheduler.backlog import Backlog
from coe.scheduler.costs import Tier
from coe.scheduler.events import Fill, Load, Why
from coe.scheduler.load_queue import READER, STAGED, LoadQueue


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


ABCD = st.sampled_from("abcd")
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), ABCD, st.booleans(), st.floats(0, 9)),
    st.tuples(st.just("take"), st.integers(0, 5), st.integers(1, 4)),
    st.tuples(st.just("put_back"), ABCD, st.integers(1, 3)),
    st.tuples(st.just("drop"), ABCD),
    st.tuples(st.just("hurry"), ABCD, st.integers(0, 20), st.sampled_from((1.0, 2.0, math.inf))),
)


@given(st.lists(OPERATIONS, max_size=60))
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


POOLS = {"g0": "gpu", "g1": "gpu", "h": "other", "c": "cpu", "d": "cpu"}


def load(expert, pool="g0", source=Tier.DISK, why=Why.DEMAND):
    return Load(pool, expert, why, source)


def lanes_of(*loads):
    lanes = LoadQueue(POOLS, {"gpu", "other"})
    for each in loads:
        lanes.put(each)
    return lanes


End = namedtuple("End", "place over failed", defaults=[True, False])
"""What a place does ends; `over`: the load or fill is done, or failed, and goes to no other place."""


HOST, INITIAL = Tier.HOST, Why.INITIAL

TIMETABLES = {
    "the urgent go first, then first come, first served": (
        [load("a", "c", why=INITIAL), load("b", "c", why=Why.PREFETCH), load("c", "c")],
        [{READER: "b"}, End(READER), {READER: "c"}, End(READER), {READER: "a"}, End(READER), {}],
    ),
    # The CPU has no lane: the reader brings experts all the way.
    "reader and lanes work at the same time": (
        [load("a"), load("b", source=HOST), load("c", "h", HOST), load("d", "c")],
        [
            *({READER: "a", "gpu": "b", "other": "c"}, End(READER, over=False), {READER: "d"}),
            *(End("gpu"), {"gpu": "a"}, End(READER), End("gpu"), End("other"), {}),
        ],
    ),
    "a copy that is still being read is waited for": (
        [load("a"), load("a", "g1", HOST), load("b", "g1", HOST)],
        [
            *({READER: "a", "gpu": "b"}, End("gpu"), {}, "gpu waits", End(READER, over=False)),
            *({"gpu": load("a")}, End("gpu"), {"gpu": load("a", "g1", HOST)}, End("gpu"), "gpu does not wait"),
        ],
    ),
    "after a read that failed the loads that waited for it read for themselves": (
        [load("a"), load("a", "g1", HOST)],
        [
            *({READER: "a"}, End(READER, failed=True)),
            *({READER: load("a", "g1", Tier.DISK)}, End(READER, over=False), {"gpu": "a"}),
        ],
    ),
    # A load that comes now waits for this fill, and for no other.
    "a fill is the least urgent at the reader and holds up no lane": (
        [Fill("gpu", "a"), load("b", "c", why=INITIAL), load("c", source=HOST)],
        [
            *({READER: "b", "gpu": "c"}, End(READER), {READER: "a"}),
            *(Fill("gpu", "d"), load("e"), End(READER), {READER: "e"}),
        ],
    ),
    "an expert that is being filled is copied once it is read": (
        [Fill("gpu", "a")],
        [
            *({READER: "a"}, "gpu does not wait", load("a", source=HOST), {}, "gpu waits"),
            *(End(READER), {"gpu": "a"}, End("gpu")),
        ],
    ),
    "after a fill that failed the load that waited for it reads for itself": (
        [Fill("gpu", "a"), load("a", source=HOST)],
        [{READER: "a"}, End(READER, failed=True), {READER: "a"}, End(READER, over=False), {"gpu": "a"}],
    ),
    # A read that nothing can hold would be thrown away. c waits for the lane of its device; the others are served.
    "the reader is not further ahead of a lane than host memory has room": (
        [load("a"), load("b"), load("c", "g1"), load("d", "c"), load("e", "h")],
        [
            *({READER: "a"}, End(READER, over=False), {READER: "b", "gpu": "a"}, End(READER, over=False)),
            *({READER: "d"}, End(READER), {READER: "e"}, End(READER, over=False), {"other": "e"}),
            *(End("gpu"), {READER: "c", "gpu": "b"}),
        ],
    ),
    # Else copies of urgent loads could keep the host memory from the reader for ever.
    "what has been read is copied before later copies, however urgent": (
        [load("a", why=INITIAL), load("b", source=HOST)],
        [*({READER: "a", "gpu": "b"}, End(READER, over=False), load("c", source=HOST)), *(End("gpu"), {"gpu": "a"})],
    ),
    # b is more urgent than the fill; a would go before it, too, and find no copy.
    "a device without a lane waits for a copy too": (
        [Fill("cpu", "a"), load("a", "c", HOST), load("b", "c", HOST)],
        [
            *({READER: "b"}, End(READER), {READER: Fill("cpu", "a")}, End(READER)),
            *({READER: load("a", "c", HOST)}, End(READER)),
        ],
    ),
    "and reads for itself if it does not come": (
        [Fill("cpu", "a"), load("a", "c", HOST)],
        [{READER: Fill("cpu", "a")}, End(READER, failed=True), {READER: load("a", "c", Tier.DISK)}, End(READER)],
    ),
}


@pytest.mark.parametrize(("loads", "steps"), TIMETABLES.values(), ids=TIMETABLES)
def test_who_is_under_way_at_which_place(loads, steps):
    """Steps: what begins by place (an expert, or the whole command), what ends, what comes, and who waits."""
    lanes = lanes_of(*loads)
    for step in steps:
        match step:
            case End():
                assert lanes.end(step.place, failed=step.failed) is step.over
            case Load() | Fill():
                lanes.put(step)
            case str():
                assert lanes.waits("gpu") is (step == "gpu waits")
            case _:
                begun = {place: lanes.begin(place) for place in lanes.places}
                assert all(lanes.begin(place) is None for place in begun)
                found = {place: one for place, one in begun.items() if one is not None}
                whole = {place for place, one in step.items() if not isinstance(one, str)}
                assert {place: one if place in whole else one.expert for place, one in found.items()} == step


def identity(command):
    """Tell commands apart: a pool has one load of an expert at a time, and host memory one fill."""
    return ("host" if isinstance(command, Fill) else command.pool), command.expert


ABC, WHY = st.sampled_from("abc"), st.sampled_from([Why.DEMAND, Why.PREFETCH, Why.INITIAL])
ANY_LOAD = st.builds(load, ABC, st.sampled_from(sorted(POOLS)), st.sampled_from(Tier), WHY)
LOADS = st.lists(st.one_of(ANY_LOAD, st.builds(Fill, st.just("gpu"), ABC)), max_size=12, unique_by=identity)


def last_place(command):
    return READER if isinstance(command, Fill) or POOLS[command.pool] == "cpu" else POOLS[command.pool]


@given(LOADS, st.data())
def test_every_load_passes_its_places_once_and_one_at_a_time(loads, data):
    """In any order of ends, and whatever fails."""
    lanes = lanes_of(*loads)
    busy = {}
    passed = {identity(each): [] for each in loads}
    over = []
    while True:
        for place in lanes.places:
            begun = lanes.begin(place)
            if begun is None:
                continue
            assert place not in busy
            busy[place] = begun
            passed[identity(begun)].append(place)
        for device in ("gpu", "other"):
            staged = [key for key, places in passed.items() if places[:1] == [READER] and POOLS.get(key[0]) == device]
            assert len(set(staged) - set(over)) <= STAGED
        if not busy:
            break
        place = data.draw(st.sampled_from(sorted(busy, key=str)))
        failed = data.draw(st.booleans())
        ended = busy.pop(place)
        if lanes.end(place, failed=failed):
            over.append(identity(ended))
            assert failed or passed[identity(ended)][-1] == last_place(ended)
        else:
            assert not failed
    assert sorted(over) == sorted(map(identity, loads))
    for each in loads:
        last = last_place(each)
        assert passed[identity(each)] in ([[READER]] if last is READER else [[READER], [READER, last], [last]])
        assert isinstance(each, Fill) or each.source is Tier.HOST or passed[identity(each)][0] is READER
    assert not any(lanes.waits(device) for device in POOLS.values())
