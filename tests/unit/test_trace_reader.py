"""What is wrong in a trace is named by file and line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mouse_board import found_by_name

from coe.board.rules import Rules
from coe.core import Batch, Failure, FailureKind, Finding, Request, Stage
from coe.errors import ConfigError
from coe.lab.workloads.recorded import recorded
from coe.lab.workloads.trace_file import read, write
from coe.lab.workloads.workload import synthetic
from coe.scheduler.events import Arrived, EventBatch, Finished, Rejected, Run, RunFailed
from coe.sim.agenda import Arrival

HEADER = '{"coe_trace": 1, "task": "day", "order": "recorded", "board": "mouse", "counts": null}'
LINE = '{"at_s": 0.5, "component": "R-1K"}'


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    return found_by_name(tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "day.jsonl"


def test_ids_are_counted_anew_and_blank_lines_are_none(board: Rules, path: Path) -> None:
    path.write_text(f'\ufeff{HEADER}\r\n\n{LINE}\n   \n{{"at_s": 1, "component": "C-1U"}}', encoding="utf-8")
    assert list(read(path).arrivals) == [Arrival(0.5, Request(0, "R-1K")), Arrival(1.0, Request(1, "C-1U"))]


def found(finding: str, expert: str = "body") -> str:
    return line(f'"component": "R-1K", "findings": {{"{expert}": {finding}}}')


def line(rest: str) -> str:
    return f'{HEADER}\n{{"at_s": 1, {rest}}}'


BAD = [
    ("", 1, "empty"),
    (HEADER, 1, "no arrivals"),
    (LINE, 1, "header"),
    ('{"coe_trace": 2}', 1, "version 2"),
    ('{"coe_trace": true}', 1, "version True"),
    ('{"coe_trace": 1, "task": "t", "order": "o"}', 1, "'board'"),
    (HEADER.replace("counts", "count"), 1, "'count'.*'counts'"),
    (HEADER.replace("mouse", "mouze"), 1, "'mouze'.*'mouse'"),
    (HEADER.replace('"day"', "3"), 1, "task.*3"),
    (HEADER.replace("null", "[1]"), 1, "'counts'"),
    (HEADER.replace("null", '{"R-1K": "12"}'), 1, "counts.R-1K.*'12'"),
    (HEADER.replace("null", '{"R-1K": NaN}'), 1, "counts.R-1K"),
    (HEADER.replace("null", '{"R-1K": -1}'), 1, "counts.R-1K.*-1"),
    (HEADER.replace("null", '{"R-1k": 1}'), 1, "'R-1k'.*'R-1K'"),
    (f"{HEADER}\n{LINE}\n{{", 3, "not JSON"),
    (f"{HEADER}\n\n{'[' * 100_000}", 3, "not JSON"),
    (f"{HEADER}\n{'1' * 5000}", 2, "not JSON"),
    (f"{HEADER}\n[]", 2, "entry"),
    (f'{HEADER}\n{{"component": "R-1K"}}', 2, "'at_s'"),
    (f'{HEADER}\n{{"at_s": 1}}', 2, "'component'"),
    (line('"component": "R-1K", "serail": ""'), 2, "'serail'.*'serial'"),
    (line('"component": "R-1KK"'), 2, "'R-1KK'.*'R-1K'"),
    (line('"component": ["R-1K"]'), 2, "component"),
    (line('"component": "R-1K", "image": null'), 2, "'image'"),
    (f'{HEADER}\n{LINE}\n{{"at_s": 0.25, "component": "R-1K"}}', 3, "0.25 s.*0.5 s"),
    *(
        (f'{HEADER}\n{{"at_s": {time}, "component": "R-1K"}}', 2, "at_s")
        for time in ("NaN", "Infinity", "-Infinity", "1e999", "-1", '"1"', "true", "null", "1" + "0" * 400)
    ),
    (line('"component": "R-1K", "findings": []'), 2, "'findings'"),
    (found('{"label": "ok", "score": 1}', "bodi"), 2, "'bodi'.*'body'"),
    (found("3"), 2, "findings.body"),
    (found("{}"), 2, "findings.body.label"),
    (found('{"label": "ok", "score": 1, "x": 1}'), 2, "'x'.*label, score"),
    (found('{"label": "okk", "score": 1}'), 2, "'okk'.*'body'.*'ok'"),
    (found('{"label": "ok", "score": Infinity}'), 2, "findings.body.score"),
]


@pytest.mark.parametrize(("text", "line", "says"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, says: str, board: Rules, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"day\.jsonl:{line}: .*{says}") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 600


def test_what_is_no_text_or_no_file_is_named(board: Rules, path: Path, tmp_path: Path) -> None:
    for content, place in ((HEADER.encode() + b'\n{"at_s": 1, "component": "\xff"}', 2), (b"x" * (9 << 20), 1)):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"day.jsonl:{place}: "):
            read(path)
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(where)
        with pytest.raises(ConfigError, match="cannot be written"):
            write(where / "no" / "t.jsonl", synthetic(board, task="t", requests=1))


@given(junk=st.binary(max_size=200))
def test_junk_is_an_error_of_ours(junk: bytes, board: Rules, path: Path) -> None:
    path.write_bytes(HEADER.encode() + b"\n" + LINE.encode() + b"\n" + junk)
    try:
        says = read(path).arrivals[0].request.component
    except ConfigError as error:
        says = str(error)
    assert says == "R-1K" or "day.jsonl:" in says


# What came in and what was found, read out of a trace


def says(expert: str, label: str) -> Finding:
    return Finding(expert, "fp32", label, 1.0)


def run(executor: str, expert: str, *requests: int) -> Run:
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


def test_a_batch_that_failed_and_ran_again_counts_as_it_ended():
    trace = [
        (0.0, Arrived(Request(0, "A")), []),
        (0.0, Arrived(Request(1, "A")), [run("cpu0", "a", 0, 1)]),
        (1.0, RunFailed("cpu0", "the model said no"), [run("cpu0", "a", 0)]),
        (2.0, Finished("cpu0", (says("a", "ok"),)), [run("cpu0", "a", 1)]),
        (3.0, RunFailed("cpu0", "the model said no"), []),
    ]
    assert recorded(trace).findings == {0: {"a": says("a", "ok")}}


def test_events_that_came_together_count_as_those_that_came_alone():
    arrived = [Arrived(Request(number, "A")) for number in range(2)]
    ended = Finished("cpu0", (says("a", "ok"), says("a", "bad")))
    together = [(1.0, EventBatch(tuple(arrived)), [run("cpu0", "a", 0, 1)]), (2.0, ended, [])]
    alone = [(1.0, arrived[0], []), (1.0, arrived[1], [run("cpu0", "a", 0, 1)]), (2.0, ended, [])]
    assert recorded(together) == recorded(alone)
    assert recorded(together).findings == {0: {"a": says("a", "ok")}, 1: {"a": says("a", "bad")}}


def test_an_empty_trace_holds_nothing():
    assert recorded([]).arrivals == ()
