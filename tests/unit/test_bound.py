"""The bound, worked by hand (docs/bound.md; tests/unit/test_never_beaten.py), recorded runs and workloads."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import board
from lines import cost as cost_of

from coe.core import Batch, Failure, FailureKind, Finding, Request, Stage
from coe.errors import ConfigError
from coe.lab.bound import Bound, bound, least_share
from coe.lab.measured_run import recorded
from coe.lab.workloads.workload import Workload
from coe.scheduler.costs import CostTable
from coe.scheduler.events import Arrived, EventBatch, Finished, Rejected, Run, RunFailed
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.sim.agenda import Arrival
from coe.sim.resources import Processor


def oracle(findings=()):
    """Return an oracle that says "ok" but where it was told otherwise."""
    known = dict(findings)
    return SimpleNamespace(find=lambda request, expert, _=None: known.get((request.id, expert)) or says(expert, "ok"))


def says(expert, label):
    return Finding(expert, "fp32", label, 1.0)


def images(rules, *arrivals):
    """Images of components that arrive at these times: (0.5, "AAB") is three at once."""
    each = [(at_s, name) for at_s, names in arrivals for name in names]
    return Workload("test", "iid", rules, [Arrival(at_s, Request(i, name)) for i, (at_s, name) in enumerate(each)])


def gpu(executors=1, capacity=1000):
    return on({"gpu": executors}, capacity)


def on(executors, capacity=1000):
    """A pool of each device, shared by its executors."""
    pools = tuple(PoolSpec(device, device, capacity, 4) for device in executors)
    sharers = [(device, i) for device, number in executors.items() for i in range(number)]
    return Plan(pools, tuple(ExecutorSpec(f"{device}{i}", device, device) for device, i in sharers))


def work_out(workload, plan, default, *, resident="", cached="", scaling=None, findings=(), **others):
    keys = [(pool.device, expert) for pool in plan.pools for expert in workload.board.experts]
    costs = CostTable({(d, e): others.get(e, others.get(d, default)) for d, e in keys})
    return bound(workload, oracle(findings), costs, plan, scaling or {}, resident, cached)


ABC = board({"A": 1, "B": 1, "C": 1})
CHAIN = board({"A": 1, "B": 1}, {"a": "d", "b": "d"})


DIAMOND = board({"R": 1}, {"r": "[a, b]", "a": "d", "b": "d"})
THREE = board({"A": 1}, {"a": "[b, c, d]"})
WEIGHTS = {"c": cost_of(weights_bytes=20), "d": cost_of(weights_bytes=30)}
BAD = {(0, "a"): says("a", "bad")}


@pytest.mark.parametrize(
    ("rules", "names", "plan", "more", "switches"),
    [
        # An expert that is used and was not there is a switch, and one that no finding leads to is none.
        (ABC, "AABBC", gpu(), {"resident": "b"}, 2),
        (CHAIN, "A", gpu(), {}, 2),
        (CHAIN, "A", gpu(), {"findings": BAD}, 1),
        # A resident that waits for what has no room beside it must come back: a and d take 10 bytes, 4 are workspace.
        (CHAIN, "A", gpu(capacity=24), {"resident": "d"}, 1),
        (CHAIN, "A", gpu(capacity=23), {"resident": "d"}, 2),
        # d, which is there, is reached by a, which is there, and by b, which is not: it need not wait.
        (DIAMOND, "R", gpu(capacity=34), {"resident": "rad"}, 1),
        # a leads to b, c and d, which are there: 10, 20 and 30 bytes of 64. The largest leaves, and a has room.
        *[
            (THREE, "A", gpu(capacity=capacity), {"resident": "bcd", **WEIGHTS}, switches)
            for capacity, switches in [(74, 1), (73, 2), (44, 2), (43, 3), (24, 3), (23, 4)]
        ],
    ],
)
def test_only_what_is_not_there_and_what_must_leave_is_a_switch(rules, names, plan, more, switches):
    assert work_out(images(rules, (0, names)), plan, cost_of(), **more).switches == switches


@pytest.mark.parametrize(("arrivals", "last_s"), [([], 0.0), ([(2.5, "X")], 2.5)])
def test_nothing_takes_no_time_and_an_unknown_component_is_answered_as_it_comes(arrivals, last_s):
    assert work_out(images(ABC, *arrivals), gpu(), cost_of()) == Bound(0, 0, last_s, last_s, 0.0, 0.0, 0.0)


USUAL, COPIED = cost_of(), cost_of(copy_s=0.8)
TWO, LANES = on({"gpu": 1, "cpu": 1}), on({"gpu": 1, "npu": 1})
FAR = cost_of(per_image_s=0.01, base_s=0.02, load_s=3.5, copy_s=2.0)
HUNGRY = cost_of(activation_bytes=5, workspace_bytes=2)
SLOW = {"b": cost_of(base_s=0.9), "d": cost_of(base_s=1.9)}
DOZEN = (ABC, (0, "A" * 12))


def scaled(*speeds):
    return {"resident": "a", "scaling": {"gpu": speeds}}


@pytest.mark.parametrize(
    ("term", "workload", "plan", "default", "more", "seconds"),
    [
        # Each term alone. A batch of n takes 0.2 + 0.1 n, a load 1 s, unless another cost is named.
        ("arrivals", (CHAIN, (0, "A"), (5, "A")), gpu(2), USUAL, {"resident": "ad"}, 5 + 0.3 + 0.3),
        # r ends at 0.3; a at 0.6, b at 1.3; d runs once, from 0.6 on to 2.6.
        ("arrivals", (DIAMOND, (0, "R")), gpu(4), USUAL, {"resident": "rabd", **SLOW}, 2.6),
        # a from 1.0 to 1.3; d is there at 1.4 and done at 1.7.
        ("arrivals", (CHAIN, (0.5, "AB")), gpu(2), USUAL, {"resident": "b", "d": cost_of(load_s=1.4)}, 1.7),
        # The GPU is ten times as fast, but 2 s of copying away; one read of 1 s serves both.
        ("arrivals", (ABC, (0, "A")), TWO, USUAL, {"gpu": FAR}, 1.3),
        ("arrivals", (ABC, (9, "A")), TWO, USUAL, {"gpu": FAR}, 9.03),
        # An executor that shares is no faster than alone.
        ("arrivals", (ABC, (0, "A")), gpu(2), USUAL, scaled(0.5, 0.8), 0.3 / 0.5),
        # a and c for 0.9 each, the last copied in 0.1 and run in 0.3.
        ("disk", (ABC, (0, "ABC")), gpu(3), cost_of(copy_s=0.1), {"cached": "b"}, 1.8 + 0.1 + 0.3),
        ("disk", (ABC, (0, "ABC")), gpu(), USUAL, {"resident": "ab", "cached": "c"}, 0),
        # b takes 5 s once it is read: first b, then a and c, is done at 6 s; the other way round at 8.
        ("disk", (ABC, (0, "ABC")), gpu(3), USUAL, {"b": cost_of(base_s=4.9)}, 1 + 5),
        # 11 images in batches of 4 follow the read: 1.1 s and three times 0.2 s, on one executor and on two.
        ("disk", (ABC, (0, "A" * 11)), gpu(1), USUAL, {}, 1 + 1.7),
        ("disk", (ABC, (0, "A" * 11)), gpu(2), USUAL, {}, 1 + 0.85),
        # One disk for all devices, and the shorter read.
        ("disk", (ABC, (0, "ABC")), TWO, USUAL, {"gpu": cost_of(load_s=2.0, copy_s=1.5)}, 3 * 0.5 + 0.3),
        # Read for 0.2, copied for 0.8: 0.2 until the lane can begin, three copies, and the last runs for 0.3.
        ("copy", (ABC, (0, "ABC")), gpu(3), COPIED, {}, 0.2 + 3 * 0.8 + 0.3),
        ("copy", (ABC, (0, "ABC")), gpu(3), COPIED, {"cached": "abc"}, 3 * 0.8 + 0.3),
        # None where a device has the memory of the host.
        ("copy", (ABC, (0, "ABC")), TWO, USUAL, {"gpu": COPIED}, 0),
        # 0.8 s on one lane and 0.4 s on the other: 4/9 s and 8/9 s of three go through them at best, at once.
        ("copy", (ABC, (0, "ABC")), LANES, cost_of(copy_s=0.4), {"cached": "abc", "gpu": COPIED}, 3 / 3.75 + 0.3),
        # 5 of a in 2 batches, 4 of b in one: 0.9 s and three times 0.2 s.
        ("compute", (ABC, (0, "AAAAABBBB")), gpu(), USUAL, {"resident": "ab"}, 1.5),
        # Beside the 10 bytes of a, 12 bytes hold 2 images, for each takes 5 and a batch 2 more.
        ("compute", (ABC, (0, "AAAA")), gpu(capacity=22), HUNGRY, {"resident": "a"}, 0.4 + 2 * 0.2),
        # As fast as executors together can be.
        ("compute", DOZEN, gpu(3), USUAL, scaled(), 1.8 / 3),
        ("compute", DOZEN, gpu(3), USUAL, scaled(1, 1.5, 1.6), 1.8 / 1.6),
        ("compute", DOZEN, gpu(3), USUAL, scaled(1, 1.6, 1.2), 1.8 / 1.6),
        ("compute", DOZEN, gpu(3), USUAL, scaled(1, 1.4), 1.8 / 1.4),
        # What comes at 10 s, and may be joined by the early image, fills so many batches of at most 4.
        ("compute", (ABC, (0, "A"), (10, "A" * 8)), gpu(), USUAL, {"resident": "a"}, 10 + 0.8 + 2 * 0.2),
        ("compute", (ABC, (0, "A"), (10, "A" * 3)), gpu(), USUAL, {"resident": "a"}, 10 + 0.3 + 0.2),
        # d cannot begin before a is done at 0.3; then 4 images are a batch of 0.6 s.
        ("compute", (CHAIN, (0, "AAAA")), gpu(2), USUAL, {"resident": "ad"}, 0.3 + 0.6 / 2),
    ],
)
def test_each_term_by_hand(term, workload, plan, default, more, seconds):
    found = work_out(images(*workload), plan, default, **more)
    assert getattr(found, f"{term}_s") == pytest.approx(seconds)
    assert found.makespan_s == max(found.arrivals_s, found.disk_s, found.copy_s, found.compute_s)


def test_two_devices_share_as_suits_both_and_a_cost_that_is_not_known_is_named():
    """a is at home on x, b on y: 4 images of each are 0.6 s there. With b twice as slow, x helps out."""
    slow, plan = cost_of(per_image_s=1.0, base_s=2.0), on({"x": 1, "y": 1})
    costs = CostTable({("x", "a"): cost_of(), ("y", "a"): slow, ("x", "b"): slow, ("y", "b"): cost_of()})
    for names, seconds in [("AAAABBBB", 0.6), ("BBBB", 1 / (1 / 0.6 + 1 / 6))]:
        found = bound(images(ABC, (0, names)), oracle(), costs, plan, {}, "ab", "")
        assert found.compute_s == pytest.approx(seconds)
    with pytest.raises(ConfigError, match=r"'a'.*'gpu'"):
        bound(images(ABC, (0, "A")), oracle(), CostTable({}), gpu(), {}, "", "")


def test_machines_share_exactly_or_at_most_as_a_split_takes_and_not_far_below():
    dice = random.Random(1)
    for _ in range(50):
        work_s = np.array([[dice.choice([0, dice.random()]) for _ in range(8)] for _ in range(2)])
        # The dual of two machines on a fine grid.
        searched = max(np.minimum(w * work_s[0], (1 - w) * work_s[1]).sum() for w in np.linspace(0, 1, 2001))
        exact = least_share(work_s)
        assert searched - 1e-9 <= exact <= searched * 1.01 + 1e-9
    # Three machines alike share evenly; three that have each a job of their own take the longest.
    assert least_share(np.full((3, 9), 2.0)) == pytest.approx(6.0)
    assert 3.6 <= least_share(np.array([[4.0, 99, 99], [99, 2.0, 99], [99, 99, 1.0]])) <= 4.0
    assert least_share(np.zeros((3, 2))) == 0
    dice = np.random.default_rng(2)
    for _ in range(30):
        work_s = dice.random((3, 6))
        # A split by hand: each job where it is shortest.
        taken = np.bincount(work_s.argmin(axis=0), work_s.min(axis=0), minlength=3).max()
        assert work_s.min(axis=0).sum() / 3 - 1e-9 <= least_share(work_s) <= taken + 1e-9


def run(executor, expert, *requests):
    return Run(executor, Batch(expert, tuple(Stage(request, expert) for request in requests)))


def test_requests_are_numbered_as_they_came_and_findings_with_them():
    trace = [
        (0.0, None, []),
        (2.0, Arrived(Request(7, "B", "second.png")), [run("cpu0", "b", 7)]),
        (2.5, Rejected(Request(3, "A"), Failure(FailureKind.IMAGE, "no image")), []),
        (2.5, Arrived(Request(1, "A")), [run("cpu1", "a", 1)]),
        # The batch that follows at once on the same executor is not the one that finished.
        (3.0, Finished("cpu0", (says("b", "ok"),)), [run("cpu0", "c", 7)]),
        (3.5, Finished("cpu1", (says("a", "bad"),)), []),
        (4.0, Finished("cpu0", (says("c", "bad"),)), []),
    ]
    seen = recorded(trace)
    assert seen.arrivals == (Arrival(0.0, Request(0, "B", "second.png")), Arrival(0.5, Request(1, "A")))
    assert seen.findings == {0: {"b": says("b", "ok"), "c": says("c", "bad")}, 1: {"a": says("a", "bad")}}


def test_a_batch_that_ran_again_counts_as_it_ended_and_events_that_came_together_as_alone():
    trace = [
        (0.0, Arrived(Request(0, "A")), []),
        (0.0, Arrived(Request(1, "A")), [run("cpu0", "a", 0, 1)]),
        (1.0, RunFailed("cpu0", "the model said no"), [run("cpu0", "a", 0)]),
        (2.0, Finished("cpu0", (says("a", "ok"),)), [run("cpu0", "a", 1)]),
        (3.0, RunFailed("cpu0", "the model said no"), []),
    ]
    assert recorded(trace).findings == {0: {"a": says("a", "ok")}}
    arrived = [Arrived(Request(number, "A")) for number in range(2)]
    ended = Finished("cpu0", (says("a", "ok"), says("a", "bad")))
    together = [(1.0, EventBatch(tuple(arrived)), [run("cpu0", "a", 0, 1)]), (2.0, ended, [])]
    alone = [(1.0, arrived[0], []), (1.0, arrived[1], [run("cpu0", "a", 0, 1)]), (2.0, ended, [])]
    assert recorded([]).arrivals == ()
    assert recorded(together) == recorded(alone)
    assert recorded(together).findings == {0: {"a": says("a", "ok")}, 1: {"a": says("a", "bad")}}


def test_batches_share_a_processor_that_two_do_not_speed_up_and_no_other():
    processor = Processor(scaling=[1.0])
    processor.begin("x", 1.0, now=0.0)
    assert processor.next_end() == (1.0, "x")
    processor.begin("y", 1.0, now=0.5)
    # Half of x is left, and it runs at half the speed.
    assert processor.next_end() == (1.5, "x")
    processor.end("x", now=1.5)
    # y has run for a second at half the speed.
    assert processor.next_end() == (2.0, "y")
    processor.end("y", now=2.0)
    assert processor.next_end() is None
    processor = Processor()
    processor.begin("x", 1.0, now=0.0)
    processor.begin("y", 0.25, now=0.5)
    assert processor.next_end() == (0.75, "y")
    processor.end("y", now=0.75)
    assert processor.next_end() == (1.0, "x")


@given(
    scaling=st.lists(st.floats(0.5, 1.0), min_size=1, max_size=4),
    works=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
)
def test_all_work_is_done_at_the_speed_of_the_processor(scaling, works):
    speeds = [min(speed * count, speed + count - 1) for count, speed in enumerate(scaling, 1)]
    processor = Processor(speeds)
    for index, work_s in enumerate(works):
        processor.begin(str(index), work_s, now=0.0)
    done, last_s, busy = 0.0, 0.0, len(works)
    while (coming := processor.next_end()) is not None:
        at_s, name = coming
        assert at_s >= last_s
        done += (at_s - last_s) * speeds[min(busy, len(speeds)) - 1]
        processor.end(name, at_s)
        last_s, busy = at_s, busy - 1
    assert done == pytest.approx(sum(works))
