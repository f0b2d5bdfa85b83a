"""Loads before the images come: what they may do and what they must not, as timetables and for any line."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import board, cost
from thorough import THOROUGH

from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError
from coe.results.metrics import Recorder
from coe.scheduler.events import Evict, Load, Why
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.testing import VirtualLine, pools_of

BOARD = board({"A": 5, "B": 4, "C": 3, "D": 2})
COST = cost(base_s=0.1)
COSTS = dict.fromkeys("abcd", COST)
ROOM_FOR_TWO, ROOM_FOR_FOUR = pools_of(1, 24, 4), pools_of(1, 44, 4)


def parts_of(components):
    return tuple(PlacedPart(component, f"P{index}") for index, component in enumerate(components))


def line_of(components="", plan=ROOM_FOR_TWO, **options):
    return VirtualLine(BOARD, COSTS, plan, strategy="late-binding", parts=parts_of(components), **options)


def boards_of(components, every_s=3.0):
    """A line that knows these parts, and to which they come one after the other."""
    line = line_of(components)
    for index, component in enumerate(components):
        line.arrive(10.0 + every_s * index, component, serial="S1", refdes=f"P{index}")
    return line


def log_after(line, at_s):
    return [(when_s, what) for when_s, what in line.log if when_s >= at_s]


def test_an_expert_is_there_before_its_image_comes():
    line = boards_of("ABCD")
    line.run()
    assert log_after(line, 10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.2, "reply 0 OK"),
        # The second image gives the pace: within 10 s two images more.
        (13.0, "cpu0 run b x1"),
        (13.0, "cpu evict a"),
        (13.0, "cpu load c"),
        (13.2, "reply 1 OK"),
        (14.0, "cpu evict b"),
        (14.0, "cpu load d"),
        (16.0, "cpu0 run c x1"),
        (16.2, "reply 2 OK"),
        (16.2, "cpu evict c"),
        (16.2, "cpu load a"),
        (19.0, "cpu0 run d x1"),
        (19.2, "reply 3 OK"),
        (19.2, "cpu evict d"),
        (19.2, "cpu load b"),
    ]
    assert {load.why for load in line.loads[2:]} == {Why.SPECULATIVE}


def test_a_speculative_load_that_has_not_begun_is_given_up_for_a_wanted_expert():
    """The eviction for it takes half a second; `d` is wanted meanwhile, and takes the room."""
    line = line_of("ABCB" + "A" * 20, evict_s=0.5)
    line.arrive(10.0, "A", serial="S1", refdes="P0")
    line.arrive(13.0, "B", serial="S1", refdes="P1")
    line.arrive(13.2, "D", serial="S1", refdes="odd")
    line.run()
    assert (13.0, "cpu evict a") in line.log
    assert next(what for _, what in log_after(line, 13.0) if "load" in what) == "cpu load d"
    assert (13.5, "cpu load d") in line.log
    assert (14.5, "cpu0 run d x1") in line.log


def test_a_speculative_load_becomes_wanted_with_its_image_and_others_wait_for_the_load_under_way_alone():
    line = line_of("ABCB" + "A" * 20, evict_s=0.5)
    line.arrive(10.0, "A", serial="S1", refdes="P0")
    line.arrive(13.0, "B", serial="S1", refdes="P1")
    line.arrive(13.2, "C", serial="S1", refdes="P2")
    line.arrive(13.3, "D", serial="S1", refdes="odd")
    line.run()
    assert (13.5, "cpu load c") in line.log
    assert next(load.why for load in line.loads if load.expert == "c") is Why.PREFETCH
    assert (14.5, "cpu0 run c x1") in line.log
    line = line_of("ABCC")
    line.arrive(10.0, "A", serial="S1", refdes="P0")
    line.arrive(13.0, "B", serial="S1", refdes="P1")
    line.arrive(13.4, "D", serial="S1", refdes="odd")
    line.run()
    assert (13.0, "cpu load c") in line.log
    assert (14.0, "cpu load d") in line.log


def test_while_pools_fill_a_wanted_expert_comes_next():
    line = line_of(plan=ROOM_FOR_FOUR)
    line.arrive(0.5, "D")
    line.run()
    assert line.log == [
        (0.0, "cpu load a"),
        (1.0, "cpu load d"),
        (2.0, "cpu0 run d x1"),
        (2.0, "cpu load b"),
        (2.2, "reply 0 OK"),
        (3.0, "cpu load c"),
    ]


def test_while_there_is_room_the_expert_that_is_waited_for_longest_comes_next():
    """More stages wait for d; but nothing has to leave for b, so no load is saved if b waits."""
    line = line_of(plan=ROOM_FOR_FOUR)
    for at_s, component in ((0.2, "B"), (0.3, "D"), (0.4, "D"), (0.5, "D")):
        line.arrive(at_s, component)
    line.run()
    assert [what for _, what in line.log if "load" in what] == [f"cpu load {expert}" for expert in "abdc"]


class Filling(VirtualLine):
    """Notes when the pools were filled first, while an expert was on its way or while none was."""

    filled: tuple[float, bool] | None = None

    def observe(self, event, commands, now, control_s=0.0):
        super().observe(event, commands, now, control_s)
        if self.filled is None and not self.controller.lacks_initial():
            self.filled = now, any(pool.is_moving() for pool in self.controller.pools.values())


def test_pools_are_filled_without_a_pause_but_not_while_a_batch_holds_the_bytes_nor_after_a_stop():
    line = Filling(BOARD, COSTS, ROOM_FOR_TWO, strategy="coserve")
    for image in range(20):
        line.arrive(float(image), "CDAB"[image % 4])
    line.run()
    assert line.filled == (1.0, True)
    line = Filling(BOARD, COSTS, ROOM_FOR_FOUR, strategy="late-binding")
    line.stop(0.5)
    line.run()
    assert line.filled == (1.0, False)
    costs = dict.fromkeys("abcd", replace(COST, activation_bytes=6, base_s=5.0, max_batch=2))
    line = Filling(BOARD, costs, pools_of(1, 34, 4), strategy="late-binding")
    for _ in range(2):
        line.arrive(0.5, "A")
    line.run()
    assert [load.expert for load in line.loads] == ["a", "b", "c"]
    assert line.filled == (7.2, False)


def test_pools_fill_in_the_order_of_the_parts_list_then_by_usage():
    line = line_of("DDC", ROOM_FOR_FOUR)
    line.run()
    assert [load.expert for load in line.loads] == ["d", "c", "a", "b"]
    assert {load.why for load in line.loads} == {Why.INITIAL}


@pytest.mark.parametrize("preloaded", [False, True])
def test_no_load_ahead_begins_before_the_first_image(preloaded):
    """The first part needs two experts, and the first place is within reach before there is a pace."""
    rules, costs = board({"B": 2, "C": 9}, {"b": "a"}), dict.fromkeys("abc", COST)
    line = VirtualLine(rules, costs, ROOM_FOR_FOUR, strategy="late-binding", parts=parts_of("BC"))
    line._simulator._preloaded = preloaded
    line._simulator.start()
    assert preloaded == (not line.controller.lacks_initial())
    line.run(start=False)
    assert ([load.expert for load in line.loads], {load.why for load in line.loads}) == (["a", "b", "c"], {Why.INITIAL})


def test_speculative_loads_are_counted():
    line = boards_of("ABCD")
    recorder = Recorder(line.controller.pools)
    observe = line.observe
    line.observe = lambda *seen, **more: (observe(*seen, **more), recorder.observe(*seen, **more))
    line.arrive(40.0, "C", serial="S2", refdes="P2")
    line.run()
    metrics = recorder.metrics()
    # The last image overtakes its board, so its expert is a demand.
    assert (metrics.switches, metrics.speculated, metrics.speculated_used, metrics.speculated_wasted) == (6, 5, 2, 1)


@pytest.mark.parametrize("strategy", ["coserve", "samba"])
def test_a_strategy_that_does_not_look_ahead_refuses_a_parts_list(strategy):
    with pytest.raises(ConfigError, match="parts list"):
        VirtualLine(BOARD, COSTS, ROOM_FOR_TWO, strategy=strategy, parts=parts_of("AB"))


@st.composite
def images(draw):
    """Draw images: when they come, their component, serial and refdes."""
    at_s, drawn = 0.0, []
    for _ in range(draw(st.integers(1, 30))):
        at_s += draw(st.sampled_from([0.0, 0.3, 1.0, 4.0]))
        index = draw(st.integers(0, 9))
        component = "ABCDABDCBA"[index] if draw(st.integers(0, 9)) else draw(st.sampled_from("ABCD"))
        refdes = f"P{index}" if draw(st.integers(0, 9)) else ""
        drawn.append((at_s, component, draw(st.sampled_from(["", "S1", "S2"])), refdes))
    return drawn


class Watched(VirtualLine):
    """Checks each speculative load at the moment when it is decided."""

    def observe(self, event, commands, now, control_s=0.0):
        super().observe(event, commands, now, control_s)
        world, pools = self.controller.world, self.controller.pools
        (backlog,) = world.backlogs()
        loads = [command for command in commands if isinstance(command, Load)]
        if any(load.why is Why.SPECULATIVE for load in loads):
            assert len(loads) == 1
            assert all(any(group.expert in pool for pool in pools.values()) for group in backlog.groups())
        for command in commands:
            if isinstance(command, Evict) and pools[command.pool].is_moving_for(Why.SPECULATIVE):
                (coming,) = pools[command.pool].planned()
                assert not backlog.waiting(command.expert)
                assert world.images_until(command.expert) > world.images_until(coming)


@given(images(), st.sampled_from(["", "ABCDABDCBA"]), st.integers(2, 4), st.sampled_from([0.0, 0.2]))
@settings(max_examples=16 * THOROUGH, deadline=None)
def test_a_speculative_load_holds_nothing_up(drawn, parts, experts, evict_s):
    plan, known = pools_of(1, 10 * experts + 4, 4), parts_of(parts)
    line = Watched(BOARD, COSTS, plan, strategy="late-binding", parts=known, evict_s=evict_s)
    for at_s, component, serial, refdes in drawn:
        line.arrive(at_s, component, serial=serial, refdes=refdes)
    line.run()
    assert len(line.results) == len(drawn)
    assert all(result.error is None for result in line.results.values())


class Cold(VirtualLine):
    """Checks each load while its one pool fills, that is until the first expert leaves."""

    fills = True
    begun = 0

    def observe(self, event, commands, now, control_s=0.0):
        super().observe(event, commands, now, control_s)
        (pool,), (backlog,) = self.controller.pools.values(), self.controller.world.backlogs()
        self.fills = self.fills and not any(isinstance(command, Evict) for command in commands)
        if not self.fills:
            return
        waiting = [group for group in backlog.groups() if group.expert not in pool]
        for load in (command for command in commands if isinstance(command, Load)):
            self.begun += 1
            if load.why in (Why.INITIAL, Why.SPECULATIVE):
                assert not waiting, f"{load.expert} goes before {waiting}"
            else:
                group = backlog.first(load.expert)
                assert group is not None
                assert all(other.since_s >= group.since_s for other in waiting), f"{load.expert} goes before {waiting}"
        if waiting and not pool.missing_bytes(COST.weights_bytes):
            assert pool.is_moving(), f"the disk is idle, there is room, and {waiting} wait"
        # Each load takes room, so the pools are full after as many loads as they hold.
        if self.controller.lacks_initial():
            assert self.begun <= min(4, (pool.spec.capacity_bytes - 4) // COST.weights_bytes)


BURSTS = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from("ABCD")), min_size=4, max_size=20)
"""By image: how long after the image before it comes, and its component."""


@given(BURSTS, st.sampled_from(["", "ABCDABDCBA", "DC"]), st.integers(1, 4), st.integers(1, 2))
@settings(max_examples=16 * THOROUGH, deadline=None)
def test_while_pools_fill_a_wanted_expert_waits_only_for_the_load_under_way_and_for_those_wanted_before(
    burst, parts, experts, executors
):
    """The disk is never idle meanwhile, no load for nobody begins, and filling ends."""
    pools = pools_of(executors, (10 * experts + 4) // executors, 4 // executors)
    line = Cold(BOARD, COSTS, pools, strategy="late-binding", parts=parts_of(parts))
    at_s = 0.0
    for gap_s, component in burst:
        at_s += gap_s
        line.arrive(at_s, component)
    line.run()
    # An expert leaves once batches take more than the workspace; each executor runs one at a time.
    activations = max(4, executors * COST.batch_bytes(COST.max_batch))
    assert line.begun >= min(4, max(1, (10 * experts + 4 - activations) // COST.weights_bytes))
    assert not line.controller.lacks_initial()
    assert [result.error for result in line.results.values()] == [None] * len(burst)


@given(images(), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=6 * THOROUGH, deadline=None)
def test_filling_ends_on_two_devices_too(drawn, gpu, cpu):
    """There a wanted expert may be left to the other device; but every image has its answer, and both pools fill."""
    room = {"gpu": gpu, "cpu": cpu}
    plan = Plan(
        tuple(PoolSpec(device, device, 10 * experts + 4, 4) for device, experts in room.items()),
        tuple(ExecutorSpec(device, device, device) for device in room),
    )
    line = line_of(plan=plan)
    for at_s, component, serial, refdes in drawn:
        line.arrive(at_s, component, serial=serial, refdes=refdes)
    line.run()
    assert not line.controller.lacks_initial()
    resident = {device: sum(expert in pool for expert in "abcd") for device, pool in line.controller.pools.items()}
    assert sum(resident.values()) >= min(4, gpu + cpu)
    assert [result.error for result in line.results.values()] == [None] * len(drawn)
