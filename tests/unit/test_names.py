"""Names that are no plain words: markup, escape sequences, bytes, dollars. They are shown as they are, never obeyed.

A name comes from a file, a folder, a component, a serial, a board or an argument; all are printed through one console.
"""

import io
import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from coe.cli import common, experts_command
from coe.cli import inspect as inspect_cli
from coe.cli import profile_command as profile_cli
from coe.cli.console import Console, Progress, styled, words
from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.helpers.visible import is_visible, visible
from coe.lab.cli import bench
from coe.pictures.photographs import Photograph
from coe.results.records import ResultsFile
from coe.results.report import write_report
from coe.results.report_cards import PixelSource
from coe.results.run_file import RunIdentity
from coe.results.summary import OutcomeCounts, RunFigures, Summary

MARKUP = r"[/x] [red]SN1 [/] [bold]x[/bold] [[ ] [link=http://x]y[/link] \[red] [@click=f]x :smile:"
CONTROL = (
    r"\x1b[2J \x1b]0;title\x07 a\x0db a\x0ab a\x09b a\x08b a\x00b \x7f \x9b31m \x85 \ud800 \u202egnp.1 \u2028 "
    r"\u2066x\u2069 \ufeff SN\u200b1 SN\xad1 SN\u20601 SN\U000e00411 \x0b\x0c"
)
NAMES = [
    *((name, name) for name in MARKUP.split()),
    *((shown.encode().decode("unicode_escape"), shown) for shown in CONTROL.split()),
    ("a\udcffb", r"a\xffb"),  # a byte of a file's name that is no text
]
names = pytest.mark.parametrize(("name", "shown"), NAMES, ids=ascii)


@pytest.fixture
def screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    return capsys


def text_of(screen):
    told = "".join(screen.readouterr())
    assert is_visible(told), "a terminal would obey this"
    return told


@names
def test_a_sentence_and_a_bar_say_a_name_as_it_is_with_escapes_for_what_is_invisible(name, shown, screen):
    common.out.print(f"left alone: {name}", soft_wrap=True)
    common.complain(f"{name}: no such file")
    common.err.print(styled(("late:", "yellow"), f" {name}"), soft_wrap=True)
    common.err.print(Text(f"made elsewhere: {name}"), soft_wrap=True)
    lines = text_of(screen).splitlines()
    assert lines[:3] == [f"left alone: {shown}", f"error: {shown}: no such file", f"late: {shown}"]
    assert visible(name) == shown
    visible(name).encode("utf-8")
    assert is_visible(name) == (name in (shown, "a\nb"))
    told = io.StringIO()
    shown_on = Console(width=200)
    shown_on.file = told
    with Progress(console=shown_on) as bar:
        bar.add_task(name, total=1, completed=1)
    with Progress(words("{task.fields[expert]}", style="bold"), console=shown_on) as bar:
        bar.add_task("", total=1, expert=name)
    assert told.getvalue().count(shown) == 2
    assert is_visible(told.getvalue())


@names
def test_a_table_shows_names_in_columns_that_stand_straight(name, shown, screen):
    table = Table(box=None, pad_edge=False)
    table.add_column(name)
    table.add_column("end")
    table.add_row(name, "|")
    table.add_row("x", "|")
    common.wide(common.out).print(table)
    heading, *rows = text_of(screen).splitlines()
    assert (heading.startswith(shown), rows[0].startswith(shown)) == (True, True)
    assert len({row.index("|") for row in rows if "|" in row}) == 1


@names
def test_a_report_and_its_files_hold_a_name_whole(name, shown, tmp_path):
    held = name.encode("utf-8", "backslashreplace").decode()
    result = Result(Request(0, name, name, name, name), Verdict.NG, (Finding("e", "fp32", name, 0.5),), 0.1)
    lost = Result(Request(1, name, f"2{name}", name, name), None, (), 0.1, Failure(FailureKind.RUN, f"why {name}"))
    with ResultsFile(tmp_path, RunIdentity("b")) as results:
        for one in (result, lost):
            results.write(one)
        items = [Photograph(Path(), name, name, name, image) for image in (name, f"2{name}")]
        summary = results.finish(items, RunFigures("b"))
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert [row["image"].encode("utf-8", "backslashreplace").decode() for row in rows] == [held, f"2{held}"]
    write_report(tmp_path / "report.html", name, [result, lost], summary, PixelSource(lambda image: None))
    page = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"<(script|img)[^>]*>[^<]*SN1", page)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "</style>"]
)
def test_a_report_runs_nothing_that_a_name_says(name, tmp_path):
    result = Result(Request(0, name, name, name, name), Verdict.NG, (Finding(name, "fp32", name, 0.5),), 0.1)
    tally = OutcomeCounts(ng=1)
    summary = Summary(RunFigures(name, strategy=name, started=name), tally, {name: tally}, {name: tally})
    write_report(tmp_path / "report.html", name, [result], summary, PixelSource(lambda image: None))
    page = (tmp_path / "report.html").read_text("utf-8")
    if name == "{{ 7*7 }}":
        assert "49" not in page
    else:
        assert page.count(name) == (name == "</style>")


@pytest.mark.parametrize("name", ["[/x]", "\x1b[2J", "a\nb\udcff"], ids=ascii)
@pytest.mark.parametrize(
    ("command", "line"),
    [
        (inspect_cli, "--{}"),
        (inspect_cli, "--board {} --images x"),
        (inspect_cli, "--board demo --images {}"),
        (inspect_cli, "--board demo --images x --max-errors {}"),
        (experts_command, "{}"),
        (experts_command, "show {} --store {}"),
        (bench, "sim --task {}"),
        (bench, "sim --strategy {}"),
        (profile_cli, "--show --out {}"),
    ],
    ids=str,
)
def test_arguments_are_repeated_as_they_are(call, command, line, name):
    said = call(*(argument.format(name) for argument in line.split(" ")), command=command)
    assert (said.status, is_visible(said.err)) == (2, True)
    assert not [word for word in ("MarkupError", "Traceback", "COE_TRACEBACK") if word in said.words]


def test_json_for_programs_stays_json_whatever_the_names(screen):
    told = {"labels": ["\x9b31m", "ü", "[/x]", "\u202e"]}
    common.out.print_json(json.dumps(told, ensure_ascii=False))
    assert json.loads(text_of(screen)) == told
