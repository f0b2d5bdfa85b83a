"""What is read is what happened; what is wrong in a trace is named by file and line."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mouse_board import BOARD, found_by_name
from texts import texts

from coe.board import rules
from coe.board.rules import Rules
from coe.core import Batch, Box, Failure, FailureKind, Finding, Request, Result, Stage, Verdict
from coe.errors import ConfigError
from coe.lab.workloads.trace_file import TraceFile, read, workload, write
from coe.lab.workloads.workload import Workload, synthetic, task, with_counts, with_tail
from coe.results.metrics import Watcher
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Arrived, Command, Event, Finished, Rejected, Reply, Run
from coe.scheduler.strategies import strategy
from coe.sim.agenda import Arrival
from coe.sim.oracle import Oracle, RecordedOracle, SampledOracle
from coe.sim.simulator import Simulator
from coe.testing import pools_of


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    return found_by_name(tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "day.jsonl"


def ok(expert: str, label: str = "ok", score: float = 0.75) -> Finding:
    return Finding(expert, "fp32", label, score)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def same(left: Workload, right: Workload) -> bool:
    def plain(work: Workload) -> list[object]:
        recorded = {number: dict(findings) for number, findings in work.recorded.items() if findings}
        counts = {name: one.count for name, one in work.board.components.items()}
        return [work.task, work.order, work.board.board, work.board.digest, counts, list(work.arrivals), recorded]

    return plain(left) == plain(right)


# Written and read


def test_a_file_is_a_header_and_a_line_an_arrival_without_what_is_empty(board: Rules, path: Path) -> None:
    arrivals = (Arrival(0.0, Request(0, "R-1K")), Arrival(0.25, Request(1, "C-1U", "Ä/1.png", "S1", "C7")))
    write(path, Workload("day", "recorded", board, arrivals, {1: {"joints": ok("joints", "none", 1.0)}}))
    assert path.read_text(encoding="utf-8") == (
        '{"coe_trace": 1, "task": "day", "order": "recorded", "board": "mouse", "counts": null}\n'
        '{"at_s": 0.0, "component": "R-1K"}\n'
        '{"at_s": 0.25, "component": "C-1U", "serial": "S1", "refdes": "C7", "image": "Ä/1.png", '
        '"findings": {"joints": {"label": "none", "score": 1.0}}}\n'
    )


def findings() -> st.SearchStrategy[dict[str, Finding]]:
    def of(expert: str, labels: list[str]) -> st.SearchStrategy[Finding]:
        scores = st.floats(allow_nan=False, allow_infinity=False)
        return st.builds(ok, st.just(expert), st.sampled_from([*labels, "none"]), scores)

    return st.fixed_dictionaries(
        {}, optional={"joints": of("joints", ["joint", "bridge"]), "body": of("body", ["ok", "bad"])}
    )


@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e9), st.sampled_from(["R-1K", "C-1U"]), texts(), texts(), texts(), findings()),
        min_size=1,
        max_size=20,
    ),
    counts=st.none() | st.fixed_dictionaries({"R-1K": st.floats(0.001, 1e9), "C-1U": st.floats(0, 1e9)}),
    words=st.tuples(texts(), texts()),
)
def test_what_is_written_is_read(rows: list, counts: dict | None, words: tuple, board: Rules, path: Path) -> None:
    rows.sort(key=lambda row: row[0])
    arrivals = [Arrival(at_s, Request(n, *texts)) for n, (at_s, *texts, _) in enumerate(rows)]
    recorded = {n: row[-1] for n, row in enumerate(rows)}
    counted = board if counts is None else with_counts(board, counts)
    before = Workload(*words, counted, arrivals, recorded)
    write(path, before)
    assert same(read(path), before)
    assert same(read(path, board), before)


def test_a_tail_survives_with_its_usage(path: Path) -> None:
    before = task("A1", order="boards", tail="steep", requests=50, seed=3)
    write(path, before)
    after = read(path)
    assert same(after, before)
    assert after.board.graph.by_probability == before.board.graph.by_probability
    write(path, task("A1", requests=50))
    assert lines(path)[0]["counts"] is None


def test_a_board_that_no_name_finds_can_be_given(board_file: Callable[[str], Path], path: Path) -> None:
    private = rules.load(board_file(BOARD.replace("mouse", "private")))
    before = synthetic(private, task="t", requests=9)
    write(path, before)
    assert lines(path)[0]["counts"] == {"R-1K": 12, "C-1U": 3}
    assert same(read(path, private), before)
    for board_given in (None, rules.load("A")):
        with pytest.raises(ConfigError, match=r"day.jsonl:1: .*'private'"):
            read(path, board_given)


def test_names_that_are_no_text_and_scores_that_are_no_number_survive(board: Rules, path: Path) -> None:
    arrivals = [Arrival(0.0, Request(0, "R-1K", "caf\udce9\n.png"))]
    write(path, Workload("t", "o", board, arrivals, {0: {"body": ok("body", "ok", math.nan)}}))
    after = read(path)
    assert list(after.arrivals) == arrivals
    assert math.isnan(after.recorded[0]["body"].score)


def test_a_name_is_a_task_or_a_trace(board: Rules, path: Path) -> None:
    assert same(workload("B2", order="boards", tail="mild", seed=5), task("B2", order="boards", tail="mild", seed=5))
    write(path, synthetic(board, task="day", requests=5))
    assert workload(str(path)).task == workload(path).task == "day"
    for name in ("A3", "no/such.jsonl", "x" * 5000):
        with pytest.raises(ConfigError, match="A1, A2, B1, B2"):
            workload(name)


# Recorded while it happens


def reply(number: int, *found: Finding, error: str | None = None, component: str = "R-1K") -> list[Command]:
    verdict = Verdict.OK if error is None else None
    failure = None if error is None else Failure(FailureKind.RUN, error)
    return [Reply(Result(Request(number, component), verdict, found, 0.0, failure))]


def arrive(number: int) -> Arrived:
    return Arrived(Request(number, "R-1K", f"{number}.png"))


def test_lines_are_written_in_order_of_arrival_as_soon_as_they_can(board: Rules, path: Path) -> None:
    finished = Finished("e1", (ok("body"),), 0.1)
    file = TraceFile(path, board, task="monday", order="line 3")
    file.observe(None, [], 99.0)
    waits = []
    for now, event, commands in [
        (100.0, arrive(5), [Run("e1", Batch("body", (Stage(5, "body"),)))]),
        (100.5, arrive(6), []),
        (101.0, arrive(7), []),
        (101.5, finished, reply(6, ok("body", "bad"))),  # 5 is still under way
        (102.0, finished, reply(5, ok("body"), ok("joints", "none"))),  # and now 5 and 6 can be written
        (102.5, arrive(8), []),
        (103.0, finished, reply(8, ok("body"))),
        (103.5, finished, reply(7, ok("body"))),
    ]:
        file.observe(event, commands, now)
        waits.append(repr(file).removeprefix(f"<TraceFile {path}, "))
    assert waits == [f"{n} lines wait>" for n in (1, 2, 3, 3, 1, 2, 2, 0)]
    file.close()
    file.close()
    file.observe(arrive(9), [], 104.0)
    after = read(path)
    assert (after.task, after.order) == ("monday", "line 3")
    assert [(arrival.at_s, arrival.request.image) for arrival in after.arrivals] == list(
        zip((0.0, 0.5, 1.0, 2.5), ("5.png", "6.png", "7.png", "8.png"), strict=True)
    )
    labels = [{expert: finding.label for expert, finding in found.items()} for found in after.recorded.values()]
    assert labels == [{"body": "ok", "joints": "none"}, {"body": "bad"}, {"body": "ok"}, {"body": "ok"}]


def test_a_replay_gets_only_what_it_can_use(board: Rules, path: Path) -> None:
    with TraceFile(path, board) as file:
        rejected = Rejected(Request(0, "R-1K"), Failure(FailureKind.IMAGE, "no picture"))
        file.observe(rejected, reply(0, error="no picture"), 0.0)
        file.observe(Arrived(Request(1, "R-9K")), reply(1, error="no component", component="R-9K"), 1.0)
        file.observe(arrive(2), [], 2.0)
        file.observe(None, reply(2, ok("body"), error="joints cannot be loaded"), 3.0)
        file.observe(arrive(3), reply(3, ok("body", "martian"), ok("joints", "joint", math.nan), error="no rule"), 4.0)
        boxed = Finding("joints", "q8", "bridge", 0.5, (Box("bridge", 0.5, (0, 0, 9, 9)),))
        file.observe(arrive(4), reply(4, boxed), 5.0)
        file.observe(arrive(5), [], 6.0)  # the run ends before its reply
    assert lines(path)[1:] == [
        {"at_s": 0.0, "component": "R-1K", "image": "2.png", "findings": {"body": {"label": "ok", "score": 0.75}}},
        {"at_s": 2.0, "component": "R-1K", "image": "3.png", "findings": {"joints": {"label": "joint", "score": None}}},
        {"at_s": 3.0, "component": "R-1K", "image": "4.png", "findings": {"joints": {"label": "bridge", "score": 0.5}}},
        {"at_s": 4.0, "component": "R-1K", "image": "5.png"},
    ]
    assert len(read(path).arrivals) == 4


def test_of_a_finding_made_again_the_second_is_written_under_the_name_of_the_rules(board: Rules, path: Path) -> None:
    first, second = Finding("joints", "q8", "joint", 0.5), Finding("joints@fp32", "fp32", "bridge", 0.75)
    with TraceFile(path, board) as file:
        file.observe(arrive(0), reply(0, first, second), 0.0)
    assert lines(path)[1]["findings"] == {"joints": {"label": "bridge", "score": 0.75}}
    assert read(path).recorded[0]["joints"].label == "bridge"


@given(order=st.permutations(range(12)), late=st.integers(0, 12))
def test_replies_may_come_in_any_order(order: list[int], late: int, board: Rules, path: Path) -> None:
    """Nothing waits but what arrived after the oldest request under way."""
    done: set[int] = set()
    with TraceFile(path, board) as file:
        for number in range(12):
            file.observe(arrive(number), [], float(number))
        for number in order[:late]:
            file.observe(None, reply(number, ok("body", score=number / 16)), 20.0)
            done.add(number)
            oldest = min(set(range(12)) - done, default=12)
            assert f" {12 - oldest} lines wait" in repr(file)
    after = read(path)
    assert [(one.at_s, one.request.image) for one in after.arrivals] == [(float(n), f"{n}.png") for n in range(12)]
    assert {n: found["body"].score for n, found in after.recorded.items()} == {n: n / 16 for n in done}


class Refuses:
    """An oracle for what must not be asked."""

    def find(self, request: Request, expert: str, variant: str | None = None) -> Finding:
        raise AssertionError(f"{expert} was asked about {request}")


class Keeps:
    """A watcher that keeps the results."""

    def __init__(self) -> None:
        self.results: dict[int, Result] = {}

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        self.results |= {one.result.request.id: one.result for one in commands if isinstance(one, Reply)}


@pytest.mark.parametrize("order", ["iid", "boards"])
def test_a_recorded_day_replays_to_the_same_results(order: str, board: Rules, path: Path) -> None:
    def run(arrivals: Sequence[Arrival], oracle: Oracle, *watchers: Watcher) -> dict[int, Result]:
        keeps = Keeps()
        costs = CostTable({("cpu", expert): Cost(0.1, 0.2, 1.0, 10, 1, 4) for expert in board.experts})
        named = strategy("coserve")
        plan = pools_of(1, 14, 4)
        line = Controller(router=board.router, graph=board.graph, costs=costs, plan=plan, strategy=named)
        simulator = Simulator(line, oracle, watchers=[keeps, *watchers])
        simulator.start()
        simulator.run(arrivals)
        line.check(idle=True)
        return keeps.results

    work = synthetic(board, task="day", order=order, requests=200, every_s=0.125, seed=2)
    with TraceFile(path, board, task=work.task, order=work.order) as file:
        live = run(work.arrivals, SampledOracle(board, 2), file)
    day = read(path)
    assert list(day.arrivals) == list(work.arrivals)
    assert len(day.recorded) == 200
    assert run(day.arrivals, RecordedOracle(day.recorded, Refuses())) == live


def test_a_full_disk_ends_the_recording_and_not_the_line(board: Rules) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    file = TraceFile(full, with_tail(board, "flat"))
    for number in range(1000):
        file.observe(arrive(number), reply(number, ok("body")), float(number))
    with pytest.raises(ConfigError, match="/dev/full"):
        file.close()
    file.close()


def test_a_trace_that_cannot_be_begun_says_so(board: Rules, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        TraceFile(tmp_path / "nowhere" / "t.jsonl", board)
