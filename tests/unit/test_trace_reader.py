"""What is wrong in a trace is named by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.core import Request
from coe.errors import ConfigError
from coe.lab.workloads.trace_file import read, write
from coe.lab.workloads.workload import synthetic
from coe.sim.agenda import Arrival

BOARD = """
board: mouse
experts:
  joints: {kind: yolov5m, labels: [joint, bridge], input: 320, reject: [bridge], then: {none: OK}}
  body: {kind: resnet18, labels: [ok, bad], input: 224, then: {ok: joints, bad: NG}}
components:
  R-1K: {count: 12, inspect: body}
  C-1U: {count: 3, inspect: joints}
"""
HEADER = '{"coe_trace": 1, "task": "day", "order": "recorded", "board": "mouse", "counts": null}'
LINE = '{"at_s": 0.5, "component": "R-1K"}'


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    """A board that is found by its name."""
    folder = tmp_path / "boards"
    folder.mkdir()
    (folder / "mouse.yaml").write_text(BOARD)
    monkeypatch.setenv(config.RULES_VARIABLE, str(folder))
    return rules.load("mouse")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "day.jsonl"


def test_ids_are_counted_anew_and_blank_lines_are_none(board: Rules, path: Path) -> None:
    path.write_text(f'\ufeff{HEADER}\r\n\n{LINE}\n   \n{{"at_s": 1, "component": "C-1U"}}', encoding="utf-8")
    assert list(read(path).arrivals) == [Arrival(0.5, Request(0, "R-1K")), Arrival(1.0, Request(1, "C-1U"))]


def found(finding: str, expert: str = "body") -> str:
    return f'{HEADER}\n{{"at_s": 1, "component": "R-1K", "findings": {{"{expert}": {finding}}}}}'


BAD = [
    ("", 1, "the file is empty"),
    (HEADER, 1, "the trace has a header and no arrivals; record at least one"),
    (LINE, 1, "the header is missing; the first line of a trace is"),
    ('{"coe_trace": 2}', 1, "a trace of version 2; this program reads version 1"),
    ('{"coe_trace": true}', 1, "a trace of version True"),
    ('{"coe_trace": 1, "task": "t", "order": "o"}', 1, "'board' is missing; write it in"),
    (HEADER.replace("counts", "count"), 1, "'count' is not a key here; did you mean 'counts'"),
    (HEADER.replace("mouse", "mouze"), 1, "no board file for 'mouze'.*did you mean 'mouse'"),
    (HEADER.replace('"day"', "3"), 1, "'task' must be text, not 3"),
    (HEADER.replace("null", "[1]"), 1, "'counts' must be null or a number for each component"),
    (HEADER.replace("null", '{"R-1K": "12"}'), 1, "the count of 'R-1K' must be a number of 0 or more, not '12'"),
    (HEADER.replace("null", '{"R-1K": NaN}'), 1, "the count of 'R-1K' must be a number"),
    (HEADER.replace("null", '{"R-1K": -1}'), 1, "component 'R-1K' cannot be counted -1"),
    (HEADER.replace("null", '{"R-1k": 1}'), 1, "'R-1k' is not a component.*did you mean 'R-1K'"),
    (f"{HEADER}\n{LINE}\n{{", 3, "not JSON .*; mend or remove this line"),
    (f"{HEADER}\n\n{'[' * 100_000}", 3, "not JSON"),
    (f"{HEADER}\n{'1' * 5000}", 2, "not JSON"),
    (f"{HEADER}\n[]", 2, "not an entry of the form"),
    (f'{HEADER}\n{{"component": "R-1K"}}', 2, "'at_s' is missing"),
    (f'{HEADER}\n{{"at_s": 1}}', 2, "'component' is missing"),
    (f'{HEADER}\n{{"at_s": 1, "component": "R-1K", "serail": ""}}', 2, "'serail' is not a key.*did you mean 'serial'"),
    (f'{HEADER}\n{{"at_s": 1, "component": "R-1KK"}}', 2, "has no component 'R-1KK'; did you mean 'R-1K'"),
    (f'{HEADER}\n{{"at_s": 1, "component": ["R-1K"]}}', 2, "'component' must be text"),
    (f'{HEADER}\n{{"at_s": 1, "component": "R-1K", "image": null}}', 2, "'image' must be text, not None"),
    (f'{HEADER}\n{LINE}\n{{"at_s": 0.25, "component": "R-1K"}}', 3, "0.25 s comes after 0.5 s; put the lines in order"),
    *(
        (f'{HEADER}\n{{"at_s": {time}, "component": "R-1K"}}', 2, "'at_s' must be seconds of 0 or more, not")
        for time in ("NaN", "Infinity", "-Infinity", "1e999", "-1", '"1"', "true", "null", "1" + "0" * 400)
    ),
    (f'{HEADER}\n{{"at_s": 1, "component": "R-1K", "findings": []}}', 2, "'findings' must be"),
    (found("{}", "bodi"), 2, "has no expert 'bodi'; did you mean 'body'"),
    (found("3"), 2, "the finding of 'body' must be"),
    (found("{}"), 2, "'label' is missing"),
    (found('{"label": "ok", "score": 1, "x": 1}'), 2, "'x' is not a key here; known: label, score"),
    (found('{"label": "okk", "score": 1}'), 2, "'okk' is not a label of 'body'; did you mean 'ok'"),
    (found('{"label": "ok", "score": Infinity}'), 2, "the score of 'body' must be a number or null"),
]


@pytest.mark.parametrize(("text", "line", "says"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, says: str, board: Rules, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"day\.jsonl:{line}: .*{says}") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 600


def test_what_is_no_text_or_no_file_is_named(board: Rules, path: Path, tmp_path: Path) -> None:
    path.write_bytes(HEADER.encode() + b'\n{"at_s": 1, "component": "\xff"}')
    with pytest.raises(ConfigError, match=r"day.jsonl:2: not JSON"):
        read(path)
    path.write_bytes(b"x" * (9 << 20))
    with pytest.raises(ConfigError, match=r"day.jsonl:1: a line of more than 8 MiB; this is not a trace"):
        read(path)
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"cannot be read: .*; give a trace file or a task"):
            read(where)
        with pytest.raises(ConfigError, match=r"cannot be written: .*; make room or give another place"):
            write(where / "no" / "t.jsonl", synthetic(board, task="t", requests=1))


@given(junk=st.binary(max_size=200))
def test_junk_is_an_error_of_ours(junk: bytes, board: Rules, path: Path) -> None:
    path.write_bytes(HEADER.encode() + b"\n" + LINE.encode() + b"\n" + junk)
    try:
        says = read(path).arrivals[0].request.component
    except ConfigError as error:
        says = str(error)
    assert says == "R-1K" or "day.jsonl:" in says
