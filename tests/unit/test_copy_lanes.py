"""The threads of disk and copy lanes, on devices that a test holds up with events."""

import queue
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Expert
from coe.errors import DeviceLost, StoreError
from coe.runtime.copy_lane import CopyLanes, Disk
from coe.scheduler.costs import Tier
from coe.scheduler.events import Evict, Evicted, Fetched, Fill, Filled, FillFailed, Load, Loaded, LoadFailed, Lost, Why

EXPERTS = {name: Expert(name, "k", ("ok",), 8, f"t/{name}") for name in "abc"}


def doing(name):
    def do(self, *words, **_):
        self._do(" ".join((name, *(getattr(word, "id", word) for word in words[-1:]))))

    return do


class Held:
    """A device each of whose acts, called "read a", waits at a gate of its name and fails with an error of its name."""

    def __init__(self, *, has_lane):
        self.has_lane = has_lane
        self.gates = {}
        self.errors = {}
        self.waiting = queue.SimpleQueue()
        self.done = []

    def gate(self, name):
        return self.gates.setdefault(name, threading.Event())

    def _do(self, name):
        if name in self.gates:
            self.waiting.put(name)
            assert self.gates[name].wait(60)
        if name in self.errors:
            raise self.errors[name]
        self.done.append(name)

    read, load, evict, fill, forget, trim, leave, close = map(
        doing, ("read", "load", "evict", "fill", "forget", "trim", "leave", "close")
    )


@contextmanager
def carriers(disk=None):
    gpu, cpu, events = Held(has_lane=True), Held(has_lane=False), queue.SimpleQueue()
    carrier = CopyLanes(
        {"gpu": gpu, "cpu": cpu}, {"g": "gpu", "c": "cpu"}, EXPERTS, disk or Disk({}), tell=events.put, crash=events.put
    )
    functions = carrier.thread_functions()
    assert sorted(functions) == ["coe-disk", "coe-lane-gpu"]
    threads = [threading.Thread(target=function) for function in functions.values()]
    for thread in threads:
        thread.start()
    try:
        yield SimpleNamespace(put=carrier.put, gpu=gpu, cpu=cpu, next=lambda: events.get(timeout=60), events=events)
    finally:
        for device in (gpu, cpu):
            for gate in device.gates.values():
                gate.set()
        carrier.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def line():
    with carriers() as line:
        yield line


def from_disk(expert, pool="g", **options):
    return Load(pool, expert, Why.DEMAND, Tier.DISK, **options)


def from_host(expert):
    return Load("g", expert, Why.DEMAND, Tier.HOST)


def event(told):
    return type(told), getattr(told, "expert", "")


def test_a_slow_read_holds_up_no_copies_and_evictions_and_the_disk_reads_on_while_an_expert_is_copied(line):
    gate = line.gpu.gate("read a")
    line.put(from_disk("a"))
    line.put(from_host("b"))
    line.put(Evict("g", "c"))
    assert {event(line.next()), event(line.next())} == {(Loaded, "b"), (Evicted, "c")}
    assert "read a" not in line.gpu.done
    gate.set()
    assert event(line.next()) == (Fetched, "a")
    assert event(line.next()) == (Loaded, "a")
    assert [what for what in line.gpu.done if what.endswith("a")] == ["read a", "load a"]
    gate = line.gpu.gate("load a")
    line.put(from_disk("a"))
    assert event(line.next()) == (Fetched, "a")
    line.put(from_disk("b", "c"))
    assert event(line.next()) == (Loaded, "b")
    gate.set()
    assert event(line.next()) == (Loaded, "a")


def test_a_throttled_disk_holds_up_the_next_read_alone():
    """The reader has read `a` and waits for the disk's time, of which there is an hour; `close` ends that."""
    with carriers(Disk(dict.fromkeys("abc", 3600), 1)) as line:
        line.put(from_disk("a"))
        line.put(from_disk("c"))
        line.put(from_host("b"))
        assert event(line.next()) == (Loaded, "b")
        assert line.events.empty()
        assert "read c" not in line.gpu.done


def test_without_a_lane_the_reader_does_all():
    with carriers() as line:
        gate = line.gpu.gate("read a")
        line.put(from_disk("a"))
        line.put(Evict("c", "b"))
        line.put(from_disk("c", "c"))
        gate.set()
        told = [event(line.next()) for _ in range(4)]
        assert [each for each in told if each[1] != "a"] == [(Evicted, "b"), (Loaded, "c")]
        # Memory of evictions is given back once no load waits for it.
        assert line.cpu.done == ["evict b", "load c", "trim"]
    assert (line.gpu.done[-1], line.cpu.done[-1]) == ("leave", "leave"), "they let go of their device as their last act"


def test_copies_leave_host_memory_before_a_file_is_read_into_it(line):
    line.put(from_disk("a", keep_copy=True, drops=("b",)))
    assert [event(line.next()), event(line.next())] == [(Fetched, "a"), (Loaded, "a")]
    assert line.gpu.done[:2] == ["forget b", "read a"]


@pytest.mark.parametrize("action", ["read a", "load a"])
def test_a_load_that_fails_at_either_place_is_over_and_the_next_goes_on(line, action):
    line.gpu.errors[action] = StoreError("it is damaged")
    line.put(from_disk("a"))
    line.put(from_disk("b"))
    told = [event(line.next()) for _ in range(4 if action == "load a" else 3)]
    assert (LoadFailed, "a") in told
    assert (Loaded, "b") in told
    assert (Loaded, "a") not in told


def test_a_device_that_is_lost_while_it_copies_evicts_or_fills_is_reported(line):
    line.gpu.errors["load a"] = line.gpu.errors["evict b"] = DeviceLost("it fell off the bus")
    line.put(from_host("a"))
    assert [type(line.next()), type(line.next())] == [Lost, LoadFailed]
    line.put(Evict("g", "b"))
    assert [type(line.next()), type(line.next())] == [Lost, Evicted]
    line.gpu.errors["fill a"] = DeviceLost("it fell off the bus")
    line.put(Fill("gpu", "a"))
    assert [type(line.next()), type(line.next())] == [Lost, FillFailed]


def test_after_a_fill_that_failed_the_load_that_waited_for_it_reads_for_itself(line):
    gate = line.gpu.gate("fill a")
    line.gpu.errors["fill a"] = StoreError("it is damaged")
    line.put(Fill("gpu", "a"))
    assert line.gpu.waiting.get(timeout=60) == "fill a"
    line.put(from_host("a"))
    gate.set()
    assert [event(line.next()) for _ in range(3)] == [(FillFailed, "a"), (Fetched, "a"), (Loaded, "a")]
    assert [what for what in line.gpu.done if what.endswith("a")] == ["read a", "load a"]


def test_a_fill_holds_up_the_reader_alone_and_its_expert_is_copied_without_another_read(line):
    gate = line.gpu.gate("fill a")
    line.put(Fill("gpu", "a"))
    assert line.gpu.waiting.get(timeout=60) == "fill a"
    line.put(from_host("a"))
    line.put(from_host("b"))
    line.put(from_disk("c", "c"))
    assert event(line.next()) == (Loaded, "b")
    assert line.cpu.done == []
    gate.set()
    assert event(line.next()) == (Filled, "a")
    assert {event(line.next()), event(line.next())} == {(Loaded, "a"), (Loaded, "c")}
    assert [what for what in line.gpu.done if what.endswith("a")] == ["fill a", "load a"]


@pytest.mark.parametrize(
    ("loads", "least"),
    [
        # Alone: its bytes over the bandwidth, however long the disk was idle before.
        ([(0.0, 100)], [1.0]),
        ([(1000.0, 100)], [1.0]),
        ([(0.0, 100), (50.0, 100)], [1.0, 1.0]),
        # One lane after another: each begins when the one before has ended.
        ([(0.0, 100), (1.0, 50), (1.5, 200)], [1.0, 0.5, 2.0]),
        # Two lanes at once share one disk: the second waits for the first.
        ([(0.0, 100), (0.25, 100)], [1.0, 1.75]),
        ([(0.0, 100), (0.0, 100), (0.0, 100)], [1.0, 2.0, 3.0]),
        ([(0.0, 0)], [0.0]),
    ],
)
def test_loads_take_what_the_disk_takes(loads, least):
    disk = Disk({str(number): size for number, (_, size) in enumerate(loads)}, 100)
    assert Disk({}).least_s("e", 0.0) == 0.0, "without a throttle"
    assert [disk.least_s(str(number), now) for number, (now, _) in enumerate(loads)] == pytest.approx(least)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), min_size=1, max_size=20), st.floats(1, 1000))
def test_never_more_bytes_than_the_bandwidth_gives(gaps, bandwidth):
    disk, now, begun = Disk({str(number): size for number, (_, size) in enumerate(gaps)}, bandwidth), 0.0, []
    for number, (gap, size) in enumerate(gaps):
        now += gap
        begun.append((now, size, now + disk.least_s(str(number), now)))
    for first, (now, _, _) in enumerate(begun):
        for last in range(first, len(begun)):
            within = sum(size for _, size, _ in begun[first : last + 1])
            assert begun[last][2] - now >= within / bandwidth - 1e-6
    ends = [end for _, _, end in begun]
    assert ends == pytest.approx(sorted(ends), rel=1e-12)  # sums of floats differ in the last digit
