"""A trace is the timetable of a run, in a form that viewers take: valid, sorted, and nothing overlaps on a thread."""

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Batch, Finding, Request, Stage
from coe.errors import ConfigError
from coe.lab.chrome_trace import ChromeTrace
from coe.scheduler.costs import Cost
from coe.scheduler.events import Arrived, Command, Event, Load, Loaded, Run, Why
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.sim.simulator import Simulator
from coe.testing import Troubles, VirtualLine, pools_of, rules_from

MIB = 1 << 20
BOARD = """
board: test
experts:
  a: {kind: k, input: 8, labels: [ok, bad], reject: [bad], shares: {ok: 1}, then: {ok: OK}}
  b: {kind: k, input: 8, labels: [ok, bad], reject: [bad], shares: {ok: 1}, then: {ok: OK}}
  c: {kind: k, input: 8, labels: [ok, bad], reject: [bad], shares: {ok: 1}, then: {ok: OK}}
components:
  A: {count: 3, inspect: a}
  B: {count: 2, inspect: b}
  C: {count: 1, inspect: c}
"""


def cost(**changes: Any) -> Cost:
    """10 MiB that load in 1 s; a batch of n takes 0.2 + 0.1 n seconds and n MiB."""
    base = {"per_image_s": 0.1, "base_s": 0.2, "load_s": 1.0, "weights_bytes": 10 * MIB, "activation_bytes": MIB}
    return Cost(**{**base, "max_batch": 4, **changes})


class TracedLine(VirtualLine):
    """A line whose history is fed to a trace as it grows, while the pools are as they were then."""

    def __init__(self, plan: Plan, costs: Cost, **options: Any) -> None:
        super().__init__(rules_from(BOARD), dict.fromkeys("abc", costs), plan, **options)
        self.trace = ChromeTrace(self.controller.executors, self.controller.pools)

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        super().observe(event, commands, now, control_s)
        if event is not None:
            now, event, commands = self.history[-1]
        self.trace.observe(event, commands, now, control_s)


def line_of(capacity: int, *, executors: int = 1, workspace: int = 4, **options: Any) -> TracedLine:
    return TracedLine(pools_of(executors, capacity * MIB, workspace * MIB), cost(), **options)


class SaysOk:
    def find(self, request: Request, expert: str, variant: str | None = None) -> Finding:
        return Finding(expert, "fp32", "ok", 1.0)


def written(trace: ChromeTrace, folder: Path) -> list[dict[str, Any]]:
    trace.write(folder / "trace.json")
    content = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    assert content.keys() == {"traceEvents", "displayTimeUnit"}
    assert content["displayTimeUnit"] == "ms"
    return list(content["traceEvents"])


def names_of(events: list[dict[str, Any]]) -> dict[int, str]:
    """Threads by id."""
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def slices(events: list[dict[str, Any]]) -> dict[str, list[tuple[float, float, str]]]:
    """(begin, end, name) in seconds by thread."""
    threads, found = names_of(events), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[threads[event["tid"]]].append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6, event["name"]))
    return dict(found)


def counter(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """(seconds, value) of a counter."""
    return [(e["ts"] / 1e6, *e["args"].values()) for e in events if e["ph"] == "C" and e["name"] == name]


def args(events: list[dict[str, Any]], category: str) -> list[Mapping[str, Any]]:
    return [event["args"] for event in events if event.get("cat") == category]


def assert_sound(events: list[dict[str, Any]]) -> None:
    """What a viewer expects of any trace."""
    whens = [event["ts"] for event in events if event["ph"] != "M"]
    assert whens == sorted(whens)
    first = next((index for index, event in enumerate(events) if event["ph"] != "M"), len(events))
    assert all(event["ph"] != "M" for event in events[first:]), "names come first"
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == processes
    assert {event["tid"] for event in events if event["ph"] in "Xi"} <= set(names_of(events))
    for event in events:
        assert event.keys() >= {"name", "ph", "pid", "tid", "args"}
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "i" or event["s"] == "t"
    for thread in slices(events).values():
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(thread))


def test_a_run_gives_an_exact_timetable(tmp_path: Path) -> None:
    line = line_of(16)
    for at_s, component in ((2.0, "A"), (2.0, "A"), (2.0, "A"), (2.1, "B")):
        line.arrive(at_s, component)
    line.run()
    events = written(line.trace, tmp_path)
    assert_sound(events)
    assert slices(events) == {
        "executor cpu0": [(2.0, 2.3, "a"), (2.3, 2.7, "a"), (3.7, 4.0, "b")],
        "pool cpu0": [(0.0, 1.0, "a"), (2.7, 3.7, "b")],
    }
    assert args(events, "batch") == [
        {"images": 1, "requests": [0]},
        {"images": 2, "requests": [1, 2]},
        {"images": 1, "requests": [3]},
    ]
    assert args(events, "load") == [
        {"why": "initial", "source": "disk", "waited_ms": 0.0},
        {"why": "demand", "source": "disk", "waited_ms": 0.0},
    ]
    evictions = [(event["ts"] / 1e6, event["name"]) for event in events if event["ph"] == "i"]
    assert evictions == [(2.7, "evict a")]
    assert counter(events, "waiting") == [(0.0, 0), (2.0, 3), (2.1, 4), (2.3, 3), (2.7, 1), (4.0, 0)]
    assert counter(events, "replies") == [(0.0, 0), (2.3, 1), (2.7, 3), (4.0, 4)]
    assert counter(events, "cpu0 resident") == [(0.0, 0), (1.0, 1), (2.7, 0), (3.7, 1)]
    assert counter(events, "cpu0 reserved") == [(0.0, 10), (2.0, 11), (2.3, 12), (2.7, 10), (3.7, 11), (4.0, 10)]


def test_processes_are_devices_and_threads_what_works_in_them(tmp_path: Path) -> None:
    plan = Plan(
        (PoolSpec("g", "cuda", 20 * MIB, 0), PoolSpec("c", "cpu", 20 * MIB, 0)),
        (ExecutorSpec("g0", "cuda", "g"), ExecutorSpec("g1", "cuda", "g"), ExecutorSpec("c0", "cpu", "c")),
    )
    line = TracedLine(plan, cost())
    events = written(line.trace, tmp_path)
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(processes.values()) == ["device cpu", "device cuda", "line"]
    threads = [(processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert sorted(threads) == [
        ("device cpu", "executor c0"),
        ("device cpu", "pool c"),
        ("device cuda", "executor g0"),
        ("device cuda", "executor g1"),
        ("device cuda", "pool g"),
    ]


def test_loads_that_wait_for_the_one_before_them_stand_one_after_another(tmp_path: Path) -> None:
    line = line_of(34)
    line.arrive(0.5, "C")
    line.run()
    events = written(line.trace, tmp_path)
    assert_sound(events)
    assert slices(events)["pool cpu0"] == [(0.0, 1.0, "a"), (1.0, 2.0, "c"), (2.0, 3.0, "b")]
    assert [each["waited_ms"] for each in args(events, "load")] == [0.0, 500.0, 0.0]


def test_disk_and_lanes_are_shown_by_their_spans(tmp_path: Path) -> None:
    line = TracedLine(pools_of(1, 24 * MIB, 4 * MIB), cost(copy_s=0.25))
    controller = line.controller
    trace = ChromeTrace(controller.executors, controller.pools)
    simulator = Simulator(controller, SaysOk(), watchers=[trace], span=trace.span)
    simulator.start()
    simulator.at(1.8, Arrived(Request(0, "A")))
    simulator.run()
    events = written(trace, tmp_path)
    assert_sound(events)
    assert slices(events) == {
        "disk": [(0.0, 0.75, "cpu0 load a"), (0.75, 1.5, "cpu0 load b")],
        "copy lane": [(0.75, 1.0, "cpu0 load a"), (1.5, 1.75, "cpu0 load b")],
        "pool cpu0": [(0.0, 1.0, "a"), (1.0, 1.75, "b")],
        "executor cpu0": [(1.8, 2.1, "a")],
    }
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    places = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "thread_name"}
    assert places["disk"] == processes["line"]
    assert places["copy lane"] == processes["device cpu"]


def test_an_unknown_resource_gets_a_thread_of_its_own(tmp_path: Path) -> None:
    trace = line_of(16).trace
    trace.span("tpu", "x load a", 0.0, 1.0)
    assert "copy tpu" in names_of(written(trace, tmp_path)).values()


def test_failures_end_what_they_failed_and_say_why(tmp_path: Path) -> None:
    line = line_of(24, troubles=Troubles({"b": 1}, frozenset({(0, "a")})))
    line.arrive(3.0, "A")
    line.run()
    events = written(line.trace, tmp_path)
    assert_sound(events)
    assert slices(events)["pool cpu0"][:2] == [(0.0, 1.0, "a"), (1.0, 2.0, "b")]
    assert [each.get("failed") for each in args(events, "load")][:2] == [None, "the disk said no"]
    assert [each.get("failed") for each in args(events, "batch")] == ["the model said no"]
    assert counter(events, "waiting")[-1] == (3.3, 0)


def test_what_has_not_ended_is_marked_and_writing_closes_nothing(tmp_path: Path) -> None:
    line = line_of(34)
    trace = line.trace
    trace.observe(None, [Load("cpu0", "a", Why.INITIAL), Load("cpu0", "b", Why.INITIAL)], 0.0)
    trace.observe(Loaded("cpu0", "a"), [Run("cpu0", Batch("a", (Stage(0, "a"),)))], 1.0)
    events = written(trace, tmp_path)
    assert_sound(events)
    marks = [(event["ts"], event["name"]) for event in events if event["ph"] == "i"]
    assert marks == [(0, "b, not ended"), (1_000_000, "a, not ended")]
    assert written(trace, tmp_path) == events
    trace.observe(Loaded("cpu0", "b"), [], 2.0)
    assert slices(written(trace, tmp_path))["pool cpu0"] == [(0.0, 1.0, "a"), (1.0, 2.0, "b")]


ARRIVALS = st.lists(st.tuples(st.floats(0, 6, allow_nan=False), st.sampled_from("ABC")), max_size=12)


@given(
    arrivals=ARRIVALS,
    executors=st.integers(1, 3),
    capacity=st.integers(14, 40),
    strategy=st.sampled_from(["coserve", "coserve-none", "samba-parallel"]),
    evict_s=st.sampled_from([0.0, 0.07]),
    bad=st.frozensets(st.tuples(st.integers(0, 11), st.sampled_from("abc")), max_size=3),
)
def test_any_run_gives_a_sound_trace_whose_counters_end_at_the_truth(
    tmp_path: Path,
    arrivals: list[tuple[float, str]],
    executors: int,
    capacity: int,
    strategy: str,
    evict_s: float,
    bad: frozenset[tuple[int, str]],
) -> None:
    line = line_of(capacity, executors=executors, strategy=strategy, evict_s=evict_s, troubles=Troubles(bad_stages=bad))
    for at_s, component in arrivals:
        line.arrive(at_s, component)
    line.run()
    events = written(line.trace, tmp_path)
    assert_sound(events)
    for pool in line.controller.pools.values():
        assert counter(events, f"{pool.id} resident")[-1][1] == len(pool)
        reserved = counter(events, f"{pool.id} reserved")
        assert reserved[-1][1] == pytest.approx(pool.reserved_bytes / MIB, abs=1e-3)
        assert max(value for _, value in reserved) <= capacity
    assert counter(events, "waiting")[-1][1] == 0
    assert counter(events, "replies")[-1][1] == len(arrivals)
    batches = [name for thread, found in slices(events).items() if thread.startswith("executor") for *_, name in found]
    assert len(batches) == sum(what.split()[1] == "run" for _, what in line.log)
    loads = [name for thread, found in slices(events).items() if thread.startswith("pool") for *_, name in found]
    assert sorted(loads) == sorted(load.expert for load in line.loads)


@pytest.mark.parametrize("name", ["missing/trace.json", "."])
def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: .*; (make it or )?name another"):
        line_of(16).trace.write(tmp_path / name)
