"""YAML as plain words: bounded, with lines, and nothing in it is ever built or run."""

import re
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from coe import config
from coe.config import format_bytes, parse_bandwidth, parse_bytes, parse_executors, parse_seconds
from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict, again_id, decided, deciding
from coe.errors import ConfigError, RulesError, first_line
from coe.helpers import strict_yaml
from coe.store.expert_id import ExpertId


def refusal(path):
    with pytest.raises(RulesError) as caught:
        strict_yaml.read(path)
    return str(caught.value)


def test_scalars_stay_text_lines_are_those_of_keys_and_nesting_up_to_the_bound_is_read(board_file):
    document = strict_yaml.read(board_file("a: [yes, 1e3, 0o17, 2024-01-01, '~', ~, null, '', <<]\nnull: 5"))
    assert document.data == {"a": ["yes", "1e3", "0o17", "2024-01-01", "~", None, None, "", "<<"], "null": "5"}
    document = strict_yaml.read(board_file("a:\n  b: 1\n  c:\n    - x\n    - y\n"))
    assert document.lines == {(): 1, ("a",): 1, ("a", "b"): 2, ("a", "c"): 3, ("a", "c", 0): 4, ("a", "c", 1): 5}
    depth = config.MAX_RULES_DEPTH
    nest = "[" * (depth - 1) + "]" * (depth - 1)
    assert str(strict_yaml.read(board_file(f"a: {nest}")).data["a"]) == nest
    one = strict_yaml.read(board_file("a: b")).digest
    two = strict_yaml.read(board_file("a: b # c")).digest
    assert one != two == strict_yaml.read(board_file("a: b # c")).digest
    assert len(one) == 64
    document = strict_yaml.read(board_file("a:\n  b: 1\n"))
    assert str(document.error(("a", "b"), "here")) == "board.yaml:2: here"
    assert str(document.error(("a", "[key]", "b", 7), "here")) == "board.yaml:2: here"
    assert str(document.error(("z",), "here")) == "board.yaml:1: here"


def test_a_billion_laughs_are_stopped_at_the_first_and_what_is_no_file_is_refused(board_file, tmp_path):
    lines = ['l0: &l0 ["ha"]'] + [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 30)]
    said = refusal(board_file("\n".join(lines)))
    assert (said.startswith("board.yaml:2: '*l0'"), "board.yaml:3: " in said, len(said) < 500) == (True, True, True)
    assert "Is a directory" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "x.yaml")


TAGS = [
    "!!python/object/apply:sys.modules.__setitem__ [pwned, 1]",
    "!!python/object/new:type [x, [], {}]",
    "!!python/name:os.system ''",
    "!!python/module:this ''",
    "!!binary aGk=",
    "!!map {a: b}",
    "!mine {a: b}",
    "! plain",
]


@pytest.mark.parametrize("value", TAGS)
def test_a_tag_is_refused_and_never_constructed(board_file, value):
    before = set(sys.modules)
    assert "tag" in refusal(board_file(f"a: b\nc: {value}\n"))
    assert ("pwned" in sys.modules, "this" in set(sys.modules) - before) == (False, False)


@pytest.mark.parametrize("size", [5 << 20, 10 << 20])
def test_a_large_file_is_refused_before_it_is_read_whole(board_file, size):
    for text in (b"a" * size, b"# a\n" * (size // 4)):
        assert re.match("board.yaml:1: .*4 MiB", refusal(board_file(text)))


@pytest.mark.parametrize("nest", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(board_file, nest):
    deep, deeper = (refusal(board_file("a: b\nc:\n " + nest * levels)) for levels in (500, 5000))
    assert re.match(f"board.yaml:3: .*{config.MAX_RULES_DEPTH}", deep)
    assert deeper.startswith("board.yaml:3: ")  # libyaml may have a bound of its own
    assert "nest" in deeper


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a:\n  b: 1\n \u00a0c: 2\n", ":3: .*whitespace"),
        ("a:\n  -\tb: 1\n", ":2: .*tab"),
        ("a:\n    b: 1\n\t\n    c: 2\n", ":3: .*tab"),
        ("a:\tb\nc: ]\n", ":2: .*block node"),
        ("a:\n  b:1\n  c: 2\n", ":2: .*'b:1'"),
        ("a:\u00a01\nb: 2\n", ":1: .*colon"),
        ("a:\n  - http://b\n  c: 2\n", ":3: .*indented"),
        ("a: {\n\tb: 1}\nc: @d\n", ":3: .*quotes"),
        ("a:\n  b: 1\n c: 2\n", ":3: .*indented"),
        ("a:1\n\n# b\n# c\nd: 2\n", ":1: .*'a:1'"),
        ("a\n\n# b\nc: 2\n", ":4: .*above"),
        ("a: {b:{c: 2}}\n", ":1: .*space"),
        ('a: "D:\\data"\nb: 1\n', ":1: .*backslash"),
        ('a: "D:\\xray"\nb: 1\n', ":1: .*backslash"),
        ('a: "\\ud800"', ":1: .*Unicode"),
        ("a:\n  b: {c: 1\n  d: 2\n", ":2: .*bracket"),
        ('a:\n  b: "c\nd: 2\n', ":2: .*quote"),
        ("a:\n  b: @c\n", ":2: .*quotes"),
        ("a: 1\nb\nc: 2\n", ":2: .*key"),
        ("a: 1\na: 2\nb: {c: 1, c: 2}\n", ":2: 'a'.*:3: 'c'"),
        ("b: {<<: {a: 1}}\n", ":1: '<<'"),
        ("a: *x\nb: !t c\n", ":1: .*alias.*:2: .*tag"),
        ("a: &a [*a]", r":1: '\*a' is an alias"),
        ("a:\n\tb: c\n\n\td: e\n", ":2: .*also line 4"),
        ("a: b\n\nc: \0\n", ":3: .*#x0000"),
        ("a: \x1b[2J", ":1: .*#x001b"),
        ("", ":1: .*empty"),
        ("# nothing\n", ":1: .*empty"),
        # What is no text: latin-1, UTF-16, an image.
        (b"a: b\nc: caf\xe9\n", ":2: .*UTF-8"),
        ("a: b\n".encode("utf-16"), ":1: .*UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ":1: .*UTF-8"),
    ],
)
def test_what_people_write_wrong_is_told_at_its_line(board_file, text, told):
    assert re.search(f"^board.yaml{told}", refusal(board_file(text)))


READ = {
    parse_bytes: {
        **{"1": 1, "123456": 123456, "7B": 7, "3kb": 3000, "3KIB": 3072, "800MB": 800_000_000},
        **{"0.5MiB": 1 << 19, "1.5GiB": 1610612736, "2 GiB": 2 << 30, " 2gib ": 2 << 30},
    },
    parse_bandwidth: dict.fromkeys(("530MB/s", "530MB", " 530 MB / s ", "530000000"), 530_000_000),
    parse_executors: {
        **{"cpu": {"cpu": 1}, "cpu=2": {"cpu": 2}, "cpu=2, cuda:0=3": {"cpu": 2, "cuda:0": 3}, "cpu=64": {"cpu": 64}}
    },
    parse_seconds: {"5s": 5.0, "250ms": 0.25, "2min": 120.0, " 1.5 s ": 1.5, "7": 7.0, "0s": 0.0},
}
AMOUNTS = [
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "1e308",
    "0.0GiB",
    "9" * 400,
    "1.5GiB2",
    "x" * 5000,
    "\u0663GiB",
    "GiB",
    "1,5GiB",
]
EXECUTORS = ["", "cpu=", "cpu=0", "cpu=-1", "cpu=1000000", "cpu=nan", "cpu=1.5", "cpu=1,cpu=1", "=1", ",", "cpu=\u00b2"]
REFUSED = {
    parse_bytes: (".", AMOUNTS),
    parse_executors: (".", [*EXECUTORS, "tpu" * 2000 + "=x", "cpu=" + "9" * 5000, "cpu=1,", "cpu=65"]),
    parse_seconds: ("250ms", ["", "s", "-1s", "nan", "inf", "5h", "1e9s", "5s5", "9" * 5000]),
    parse_bandwidth: ("530MB/s", [*AMOUNTS, "fast", "530MB/h", "530MB/s/s", "-1MB/s", "0MB/s", "/s"]),
}


@pytest.mark.parametrize(
    ("read", "text", "value"), [(read, *row) for read, rows in READ.items() for row in rows.items()]
)
def test_a_text_becomes_a_number(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(("read", "text"), [(read, text) for read, (_, rows) in REFUSED.items() for text in rows])
def test_a_text_that_is_no_number_is_refused_in_short_with_one_that_is(read, text):
    with pytest.raises(ConfigError, match=REFUSED[read][0]) as refused:
        read(text)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("amount", "text"),
    {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 3 << 29: "1.50 GiB", 5e12: "4656.61 GiB"}.items(),
)
def test_an_amount_of_memory_is_written(amount, text):
    assert format_bytes(amount) == text


@given(st.integers(1, 1 << 50))
def test_what_is_written_can_be_read_again(amount):
    assert parse_bytes(format_bytes(amount)) == pytest.approx(amount, rel=0.05)


@given(texts())
def test_any_text_is_an_amount_or_refused(text):
    for parse in (parse_bytes, parse_executors):
        with suppress(ConfigError):
            assert parse(text)


def says(expert, label):
    return Finding(expert, "q8", label, 0.5)


def test_where_an_expert_looked_again_its_second_finding_decides_in_any_order():
    looks = [says("a", "ok"), says(again_id("a"), "bad"), says("b", "ok")]
    for findings in (looks, looks[::-1]):
        found = decided({one.expert: one for one in findings})
        assert {expert: one.label for expert, one in found.items()} == {"a": "bad", "b": "ok"}
    assert [one.expert for one in deciding(looks)] == [again_id("a"), "b"]


def test_an_error_is_the_sentence_of_a_failure_and_its_first_line_is_never_blank():
    request = Request(0, "R0402", submitted_s=1.0, due_s=2.0)
    refused = Result.refused(request, Failure(FailureKind.STOPPED, "too late"), now=3.0)
    assert (refused.verdict, refused.error, refused.latency_s, refused.late) == (None, "too late", 2.0, True)
    assert Result(request, Verdict.OK, (), 0.1).error is None
    assert first_line(ValueError("no room\nat line 3")) == "no room"
    assert first_line(ValueError("\n  \n  it is damaged \n")) == "it is damaged"
    assert [first_line(error) for error in (ValueError(), ValueError("\n"))] == ["ValueError", "ValueError"]


@pytest.mark.parametrize(
    ("text", "board", "name", "folders"),
    [("demo/resistor", "demo", "resistor", ("demo", "resistor")), ("resistor", "", "resistor", ("resistor",))],
)
def test_an_id_is_its_parts_and_back(text, board, name, folders):
    expert = ExpertId.of(text)
    assert expert == ExpertId(board, name)
    assert (expert.folders, str(expert)) == (folders, text)
