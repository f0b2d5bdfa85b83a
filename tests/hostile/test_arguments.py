"""Arguments that mean nothing: numbers out of range, no numbers, circles in rules. Each is one sentence and 2."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tiny_line import Call

from coe.board import rules
from coe.cli import experts_command, inspect, profile_command
from coe.errors import ConfigError, RulesError, shortened
from coe.lab.cli import bench
from coe.pictures.finding import find

INSPECT = ("--board", "demo", "--images", "nowhere")
TRAIN = ("train", "x/y", "--data", ".", "--kind", "resnet18", "--input", "64")
WHOLE = {"0", "-1", "nan", "1.5", "inf", "", "1e3", "99999999999999999999999"}
SEED = {"-1", "nan", "1.5", "4294967296", "-99999999999999999999999"}
ABOVE_ZERO = {"nan", "inf", "-inf", "0", "-0.0", "-1", "1e308", ""}
MEMORY = {"", "0", "-1", "nan", "inf", "1e308", "0.0GiB", "9" * 400, "1" * 19 + "GiB", "1.5GiB2", "x" * 5000, "٣GiB"}
TIME = {"", "0", "0s", "-1s", "nan", "inf", "1e308", "1h", "9" * 400, "x" * 5000, "0.0ms"}
EXECUTORS = {"", "cpu=0", "cpu=-1", "cpu=1000000", "cpu=nan", "cpu=1.5", "cpu=1,cpu=1", "=1", "tpu" * 2000 + "=x", ","}

# Typer owns the other ranges; one option stands for whole numbers, one for seeds.
OPTIONS: list[tuple[ModuleType, tuple[str, ...], str, set[str]]] = [
    (inspect, INSPECT, "--within", TIME),
    (inspect, INSPECT, "--max-wait", TIME),
    (experts_command, TRAIN, "--input", WHOLE | {"7", "4097", "1000000"}),
    (experts_command, TRAIN, "--lr", ABOVE_ZERO),
    (experts_command, ("synth", "--board", "demo"), "--seed", SEED),
    (profile_command, ("--board", "demo"), "--memory", MEMORY),
    (bench, ("run",), "--rate", {"nan", "inf", "-inf", "0", "-1", ""}),
    (bench, ("scale",), "--every", {"nan", "inf", "-inf", "-1", "1e308", ""}),
    (bench, ("scale",), "--experts", WHOLE | {"39", "40,,40"}),
    (bench, ("scale",), "--requests", WHOLE | {"39"}),
]
CASES = [
    pytest.param(
        command, before, option, value, id=f"{command.__name__[8:]} {before[0]} {option} {shortened(value, 20)}"
    )
    for command, before, option, values in OPTIONS
    for value in sorted(values)
]


@pytest.mark.parametrize(("command", "before", "option", "value"), CASES)
def test_a_number_that_means_nothing_is_refused(
    call: Call, command: ModuleType, before: tuple[str, ...], option: str, value: str
) -> None:
    said = call(*before, f"{option}={value}", command=command)
    assert said.status == 2
    assert said.out == ""
    assert said.err.count("error:") + said.err.count("─ Error ─") == 1
    assert len(said.words) < 700
    if option not in ("--within", "--max-wait", "--memory"):
        assert option in said.words
        assert value in said.words or "," in value


@pytest.mark.parametrize("value", sorted(MEMORY | {"GiB", "1.5 TiBs", "1,5GiB", "1e9", "1 2", "0x10", ".5GiB", "0.4"}))
@pytest.mark.parametrize("read", ["parse_bytes", "parse_bandwidth"])
def test_an_amount_that_means_nothing_is_a_short_sentence(read: str, value: str) -> None:
    from coe import config

    with pytest.raises(ConfigError) as caught:
        getattr(config, read)(value)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("value", sorted(EXECUTORS | {"cpu=", "cpu=\u00b2", "cpu=" + "9" * 5000, "cpu=1,", "cpu=65"}))
def test_executors_that_mean_nothing_are_a_short_sentence(value: str) -> None:
    from coe import config

    with pytest.raises(ConfigError) as caught:
        config.parse_executors(value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (experts_command, ("show", "x" * 300)),
        (experts_command, ("show", "x/" + "y" * 300)),
        (experts_command, ("show", "x/y", "--store", "s" * 300)),
        (experts_command, ("list", "--store", "s" * 300)),
        (experts_command, ("verify", "--store", "s/" * 3000)),
        (experts_command, ("prepare", "--store", "s" * 300)),
        (experts_command, ("import", "x/y", "f" * 300, "--kind", "resnet18", "--input", "64", "--labels", "a,b")),
        (
            experts_command,
            ("train", "x/y", "--data", "d" * 300, "--kind", "resnet18", "--input", "64", "--labels", "a,b"),
        ),
        (experts_command, ("synth", "--board", "b" * 300 + ".yaml")),
        (profile_command, ("--board", "b" * 300 + ".yaml")),
        (bench, ("run", "--board", "b" * 300 + ".yaml", "--images", ".")),
        (bench, ("run", "--json", "j" * 300)),
        (bench, ("sim", "--task", "A1", "--json", "t/" * 3000)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_name_that_is_too_long_is_a_sentence(call: Call, command: ModuleType, arguments: tuple[str, ...]) -> None:
    said = call(*arguments, command=command)
    assert said.status == 2
    assert said.err.count("error:") == 1


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".png", "x/" * 3000, "x" * 300 + ".csv"])
def test_images_with_a_name_that_is_too_long(name: str) -> None:
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
def test_a_circle_is_called_a_circle(
    board_file: Callable[[str], Path], entries: dict[str, str], components: dict[str, str], circle: str
) -> None:
    text = "board: x\nexperts:\n" + "".join(f"  {name}: {EXPERT % more}\n" for name, more in entries.items())
    text += "components:\n" + "".join(f"  {name}: {entry}\n" for name, entry in components.items())
    with pytest.raises(RulesError, match=f"experts follow each other in a circle: {circle}(;|$)"):
        rules.load(board_file(text))


def test_a_label_that_no_rule_covers_stays_one_where_there_is_no_circle(board_file: Callable[[str], Path]) -> None:
    text = f"board: x\nexperts:\n  a: {EXPERT % ''}\n  b: {EXPERT % ''}\ncomponents:\n"
    text += "  X: {inspect: a, then: {ok: b, bad: NG}}\n"
    with pytest.raises(RulesError, match="no rule covers labels 'ok', 'bad' of 'b'"):
        rules.load(board_file(text))


# Long sentences


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 5000, 10**6])
def test_a_text_is_cut_in_its_middle_and_says_how_long_it_was(length: int) -> None:
    text = ("begin" + "x" * length)[:length] if length < 100 else "begin" + "x" * (length - 8) + "end"
    short = shortened(text, 100)
    if length <= 100:
        assert short == text
        return
    assert len(short) == 100
    assert short.startswith("begin")
    assert short.endswith("end")
    assert f" ... ({length:,} characters) ... " in short
