"""Host memory as a tier between the disk and a device with memory of its own: what leaves comes back at once.

While the disk is idle, it reads experts that no device holds into host memory, the likeliest first.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, arrive, board, cost, inspect, log_of
from thorough import THOROUGH

from coe.scheduler.costs import Tier
from coe.scheduler.events import Evict, Fill, Filled, FillFailed, Load, Loaded, LoadFailed
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.testing import Troubles, VirtualLine

BOARD = board({"A": 3, "B": 2, "C": 1})


def line_of(copies, strategy="coserve", devices=("cuda",), demotes=True, rules=BOARD, capacity=14, bad_loads=None):
    """A line whose pools hold one expert each; a copy from host memory takes 0.1 s instead of a load's 1 s."""
    made = Plan(
        tuple(PoolSpec(f"{device}0", device, capacity, 4) for device in devices),
        tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in devices),
        CacheSpec(copies, frozenset({"cuda"}), demotes),
    )
    troubles = Troubles(bad_loads or {})
    costs = {expert: cost(copy_s=0.1) for expert in rules.experts}
    return VirtualLine(rules, costs, made, strategy=strategy, troubles=troubles)


def fills_of(line):
    return [command.expert for _, _, commands in line.history for command in commands if isinstance(command, Fill)]


TIMETABLES = {
    "an idle disk fills host memory by falling usage": [
        (0.0, "cuda0 load a"),  # from disk
        (0.9, "cuda0 load a"),  # up to the device
        (1.0, "cuda fill b"),
        (1.9, "cuda fill c"),
    ],
    "a wanted load waits for the fill under way and for no other": [
        (1.1, "cuda0 evict a"),
        (1.9, "cuda0 load c"),  # from disk, as soon as b is read
        (2.8, "cuda0 load c"),
        (2.9, "cuda0 run c x1"),
    ],
    "an expert that is wanted during its fill is read once": [
        (1.1, "cuda0 evict a"),
        (1.9, "cuda0 load b"),  # up to the device
        (2.0, "cuda0 run b x1"),
    ],
    "who left the device comes back from host memory": [
        (20.0, "cuda0 evict a"),
        (20.0, "cuda0 load b"),  # from host memory
        (20.1, "cuda0 run b x1"),
        (30.0, "cuda0 evict b"),
        (30.0, "cuda0 load a"),
        (30.1, "cuda0 run a x1"),
        (40.0, "cuda0 run a x1"),
        (50.0, "cuda0 evict a"),
        (50.0, "cuda0 load b"),
        (50.1, "cuda0 run b x1"),
    ],
    # There is room for one copy: a goes without one, because b has its copy and is about to come up.
    "who is wanted is not driven out by who makes room for it": [
        (20.0, "cuda0 evict a"),
        (20.0, "cuda0 load b"),
        (20.1, "cuda0 run b x1"),
    ],
}
IMAGES = [[], [(1.1, "C")], [(1.1, "B")], [(10.0, "A"), (20.0, "B"), (30.0, "A"), (40.0, "A"), (50.0, "B")]]
IMAGES += [[(10.0, "A"), (20.0, "B")]]


@pytest.mark.parametrize(("name", "images"), [*zip(TIMETABLES, IMAGES, strict=True)])
def test_host_memory_is_filled_and_used(name, images):
    line = inspect(line_of(copies=10 if "driven out" in name else 20), *images)
    assert log_of(line, after=TIMETABLES[name][0][0]) == TIMETABLES[name]


@pytest.mark.parametrize("copies", [0, 9, 10, 19])
def test_filling_takes_only_room_that_is_free(copies):
    line = line_of(copies)
    line.run()
    assert fills_of(line) == ["b"][: copies // 10]


def test_a_fill_that_fails_leaves_no_copy_and_the_next_one_goes_on():
    line = line_of(copies=20, bad_loads={"b": 1})
    inspect(line, (20.0, "B"))
    assert fills_of(line) == ["b", "c"]
    assert [load.source for load in line.loads if load.expert == "b"] == [Tier.DISK]
    assert line.results[0].error is None


def test_nothing_is_filled_for_a_device_that_is_lost_or_for_a_line_that_has_stopped():
    lost, stopped = line_of(copies=20), line_of(copies=20)
    lost.lose(1.5, "cuda")
    stopped.stop(1.5)
    for line in (lost, stopped):
        line.run()
        assert fills_of(line) == ["b"]


@pytest.mark.parametrize("strategy", ENGINE)
def test_no_fill_begins_during_a_load_nor_during_another_fill(strategy):
    line = line_of(60, strategy, devices=("cuda", "cpu"), rules=board(dict.fromkeys("ABCDEFGH", 1)))
    for at in range(12):
        arrive(line, 0.5 + 1.7 * at, "ABCCBACAB"[at % 9])
    line.run()
    assert fills_of(line)
    under_way = 1  # the load with which the line began
    for _, event, commands in line.history:
        under_way -= isinstance(event, (Loaded, LoadFailed, Filled, FillFailed))
        for command in commands:
            assert not (isinstance(command, Fill) and under_way)
            under_way += isinstance(command, (Load, Fill))
    assert not under_way


def test_a_cache_that_reads_through_is_filled_by_the_disk_too_and_holds_nothing_before():
    """samba: the copies that the books count must have been read, or the lane would read them, unannounced."""
    line = line_of(copies=20, strategy="samba", demotes=False)
    inspect(line, (1.5, "C"), (10.0, "B"))
    assert fills_of(line) == ["b"]
    assert log_of(line) == [
        (0.0, "cuda0 load a"),  # from disk
        (0.9, "cuda0 load a"),  # up to the device
        (1.0, "cuda fill b"),
        (1.5, "cuda0 evict a"),
        (1.9, "cuda0 load c"),  # from disk: it was in no cache yet
        (2.8, "cuda0 load c"),
        (2.9, "cuda0 run c x1"),
        (10.0, "cuda0 evict c"),
        (10.0, "cuda0 load b"),  # from host memory
        (10.1, "cuda0 run b x1"),
    ]


def test_a_load_that_fails_elsewhere_spoils_no_copy():
    """The CPU reads the file itself; the copy is for the GPU."""
    line = line_of(copies=30, devices=("cuda", "cpu"), strategy="coserve-none")
    line.run()
    cache = line.controller.cache
    assert "c" in cache
    line.bad_loads["c"] = 1
    arrive(line, 10.0, "CA")  # dealt out in turn, to equal devices by their names
    line.run(start=False)
    assert [event.pool for _, event, _ in line.history if isinstance(event, LoadFailed)] == ["cpu0"]
    assert "c" in cache
    cache.check(idle=True)


def test_with_room_for_all_nothing_is_read_twice():
    line = line_of(copies=30)
    for turn in range(4):
        for at, component in enumerate("ABC"):
            arrive(line, 10.0 + 10 * (3 * turn + at), component)
    line.run()
    disk = [load.expert for load in line.loads if load.source is Tier.DISK]
    assert disk + fills_of(line) == ["a", "b", "c"]
    assert (40.1, "cuda0 run a x1") in line.log
    kept = [one.expert for _, _, some in line.history for one in some if isinstance(one, Evict) and one.keep_copy]
    # The copies that were filled are not made again.
    assert kept == ["a"]


@pytest.mark.parametrize("copies", [0, 10, 20, 30])
@pytest.mark.parametrize("strategy", ENGINE)
def test_copies_are_for_the_device_behind_them_alone(strategy, copies):
    line = line_of(copies, strategy, devices=("cuda", "cpu"))
    for at in range(12):
        arrive(line, 10.0 + at, "ABCCBACAB"[at % 9])
    line.run()
    assert len(line.results) == 12
    assert {result.error for result in line.results.values()} == {None}
    assert all(load.source is Tier.DISK and not load.keep_copy for load in line.loads if load.pool.startswith("cpu"))
    line.controller.cache.check()


FIVE = board(dict(zip("ABCDE", (9, 8, 1, 2, 1), strict=True)))
NO_FILLS = {"c": 1, "e": 1}
"""The experts that no pool holds at first: a fill that fails leaves no copy, and is not tried again."""


def test_while_the_disk_reads_what_lies_in_host_memory_comes_up():
    """d and e are wanted at the same time, e first. With one load at a time d would run at 31.3."""
    line = line_of(copies=20, strategy="late-binding", rules=FIVE, capacity=34, bad_loads=NO_FILLS)
    assert log_of(line, (10.0, "C"), (30.0, "EDD"), after=10.0) == [
        (10.0, "cuda evict d"),
        (10.0, "cuda load c"),
        (10.9, "cuda load c"),
        (11.0, "cuda0 run c x1"),
        (30.0, "cuda evict c"),
        (30.0, "cuda evict b"),
        (30.0, "cuda load e"),  # from disk
        (30.0, "cuda load d"),  # from host memory
        (30.1, "cuda0 run d x2"),
        (30.9, "cuda load e"),
        (31.0, "cuda0 run e x1"),
    ]


def test_the_disk_reads_on_while_a_device_copies():
    """Each load takes 0.9 s of the disk and then 0.1 s of the lane."""
    line = line_of(copies=0, strategy="late-binding", rules=FIVE, capacity=34)
    assert log_of(line, (10.0, "CE"), after=10.0) == [
        (10.0, "cuda evict d"),
        (10.0, "cuda load c"),
        (10.9, "cuda evict b"),
        (10.9, "cuda load c"),
        (10.9, "cuda load e"),
        (11.0, "cuda0 run c x1"),
        (11.8, "cuda load e"),
        (11.9, "cuda0 run e x1"),
    ]


def test_a_board_that_a_copy_in_host_memory_saves_is_not_called_late():
    line = line_of(copies=20, strategy="late-binding", rules=FIVE, capacity=34, bad_loads=NO_FILLS)
    arrive(line, 10.0, "C")
    line.arrive(30.0, "D", due_s=30.5)
    line.run()
    assert log_of(line, after=30.0) == [(30.0, "cuda evict c"), (30.0, "cuda load d"), (30.1, "cuda0 run d x1")]


def test_an_expert_with_a_copy_in_host_memory_leaves_before_one_that_the_disk_would_bring_back():
    """b is likelier than d. At 10.0 d runs, so b leaves; from then on there is a copy of it."""
    rules = board(dict(zip("ABCDE", (9, 5, 1, 4, 1), strict=True)))
    line = line_of(copies=20, strategy="late-binding", rules=rules, capacity=34, bad_loads=NO_FILLS)
    inspect(line, (10.0, "DC"), (20.0, "B"), (30.0, "E"))
    evictions = [entry for entry in log_of(line, after=10.0) if "evict" in entry[1]]
    assert evictions == [(10.0, "cuda evict b"), (20.0, "cuda evict c"), (30.0, "cuda evict b")]


TIMES = st.sampled_from([10.0, 10.05, 10.5, 11.0, 13.0])
ARRIVALS = st.lists(st.tuples(TIMES, st.sampled_from("ABCDE")), min_size=1, max_size=16)


@given(
    ARRIVALS,
    st.sampled_from(ENGINE),
    st.sampled_from([0, 10, 30]),
    st.sampled_from([("cuda",), ("cuda", "cpu")]),
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 3), max_size=2),
)
@settings(max_examples=16 * THOROUGH)
def test_disk_and_lanes_carry_one_expert_at_a_time(arrivals, strategy, copies, devices, bad):
    """The books of the pools are proved after each event: no byte is used that was not reserved."""
    line = line_of(copies, strategy, devices, rules=FIVE, capacity=24, bad_loads=bad)
    free_s, spans = {}, []

    def span(place, what, begin_s, end_s):
        assert begin_s >= free_s.get(place, 0.0)
        free_s[place] = end_s
        spans.append((place, what))

    line._simulator._span = span
    for at_s, component in sorted(arrivals):
        arrive(line, at_s, component)
    line.run()
    assert len(line.results) == len(arrivals)
    copying = []
    for _, event, commands in line.history:
        if isinstance(event, Loaded | LoadFailed):
            copying = [load for load in copying if (load.pool, load.expert) != (event.pool, event.expert)]
        for command in commands:
            # The copy that a load counts on is there until that has ended.
            assert not {load.expert for load in copying} & set(getattr(command, "drops", ()))
            if isinstance(command, Load) and command.source is Tier.HOST:
                copying.append(command)
    # From disk through the reader; from there, and from host memory, through the lane of the device.
    through = Counter(place for place, _ in spans)
    reads = sum(load.source is Tier.DISK for load in line.loads) + len(fills_of(line))
    failed_fills = sum(isinstance(event, FillFailed) for _, event, _ in line.history)
    # A load that waits for a fill that fails reads for itself.
    assert reads <= through[None] <= reads + failed_fills
    assert all(through[device] == sum(load.pool.startswith(device) for load in line.loads) for device in devices)
