"""Texts and rules that mean nothing: amounts, executors, circles. Each is one short sentence."""

from pathlib import Path

import pytest

from coe import config
from coe.board import rules
from coe.errors import ConfigError, RulesError, shortened
from coe.pictures.finding import find

AMOUNTS = ["", "0", "-1", "nan", "inf", "1e308", "0.0GiB", "9" * 400, "1.5GiB2", "x" * 5000, "٣GiB", "GiB", "1,5GiB"]
EXECUTORS = ["", "cpu=0", "cpu=-1", "cpu=1000000", "cpu=nan", "cpu=1.5", "cpu=1,cpu=1", "=1", "tpu" * 2000 + "=x", ","]
READERS = {config.parse_bytes: AMOUNTS, config.parse_bandwidth: AMOUNTS}
READERS |= {config.parse_executors: [*EXECUTORS, "cpu=", "cpu=\u00b2", "cpu=" + "9" * 5000, "cpu=1,", "cpu=65"]}


@pytest.mark.parametrize(("read", "text"), [(read, text) for read, texts in READERS.items() for text in texts])
def test_a_text_that_means_nothing_is_a_short_sentence(read, text):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_images_with_a_name_that_is_too_long(name):
    with pytest.raises(ConfigError, match="File name too long"):
        find(Path(name), ["A"])


# Circles

EXPERT = "{kind: resnet18, labels: [ok, bad], input: 48%s}"


@pytest.mark.parametrize(
    ("entries", "components", "circle"),
    [
        (
            {"a": "", "b": ""},
            {"X": "{inspect: a, then: {ok: b, bad: NG}}", "Y": "{inspect: b, then: {ok: a, bad: NG}}"},
            "b -> a -> b",
        ),
        ({"a": ", then: {bad: a}"}, {"X": "{inspect: a}"}, "a -> a"),
        ({"a": ", then: {ok: a}"}, {"X": "{inspect: a}"}, "a -> a"),
        ({"a": "", "b": ", then: {ok: a}"}, {"X": "{inspect: a, then: {ok: b}}"}, "a -> b -> a"),
        (
            {"a": "", "b": ""},
            {
                "X": "{inspect: a, then: {ok: b, bad: NG}}",
                "Y": "{inspect: b, then: {ok: {inspect: a, then: {ok: OK, bad: NG}}, bad: NG}}",
            },
            "b -> a -> b",
        ),
        (
            {"a": "", "b": ", then: {ok: [c], bad: NG}", "c": ""},
            {"X": "{inspect: a, then: {ok: b, bad: NG}}", "Y": "{inspect: c, then: {ok: a, bad: NG}}"},
            "c -> a -> b -> c",
        ),
        ({"a": ", then: {ok: [{inspect: b, then: {ok: a}}], bad: NG}", "b": ""}, {"X": "{inspect: a}"}, "a -> b -> a"),
    ],
)
def test_a_circle_is_called_a_circle(board_file, entries, components, circle):
    text = "board: x\nexperts:\n" + "".join(f"  {name}: {EXPERT % more}\n" for name, more in entries.items())
    text += "components:\n" + "".join(f"  {name}: {entry}\n" for name, entry in components.items())
    with pytest.raises(RulesError, match=f"experts follow each other in a circle: {circle}(;|$)"):
        rules.load(board_file(text))


# Long sentences


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 5000, 10**6])
def test_a_text_is_cut_in_its_middle_and_says_how_long_it_was(length):
    text = ("begin" + "x" * length)[:length] if length < 100 else "begin" + "x" * (length - 8) + "end"
    short = shortened(text, 100)
    if length <= 100:
        assert short == text
        return
    assert len(short) == 100
    assert short.startswith("begin")
    assert short.endswith("end")
    assert f" ... ({length:,} characters) ... " in short
