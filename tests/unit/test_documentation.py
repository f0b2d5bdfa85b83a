"""What README and docs name exists: files, targets of make, options, and whole commands.

Each command reads its arguments itself, as the page has them, and is ended where its work would begin.
"""

import argparse
import importlib
import inspect
import re
import shlex
import subprocess
import sys
import time
from functools import partial

import pages
import psutil
import pytest
import results_page
import simulated_figures
import typer
import typer.main
from tables import with_slow_rows

from coe.cli.start import MODULES
from coe.scheduler import policies
from coe.scheduler.strategies import Strategy

COMMANDS = ("coe-inspect", "coe-board", "coe-experts", "coe-bench", "coe-profile", "coe-serve")
LINES = [
    (place, shlex.split(re.sub(r"\$\w+", "1", line), comments=True))  # a loop's variable is a number
    for place, line in pages.commands()
    if re.match(r"coe-|python -m apps\.|make ", line)
]
STARTED = [(place, words) for place, words in LINES if words[0] != "make"]


class Began(BaseException):
    """The arguments were taken, and the command's work would begin now."""


@pytest.fixture
def begin(monkeypatch):
    """Start a command, of typer or of argparse, up to where its work begins."""

    def invoke(command, context):
        if not hasattr(command, "commands"):  # a group goes on with the command that was named
            raise Began

    def parse_args(parser, *arguments):
        parse(parser, *arguments)
        raise Began

    parse = argparse.ArgumentParser.parse_args
    (command,) = (parent for parent in typer.core.TyperCommand.__mro__ if parent.__name__ == "Command")
    monkeypatch.setattr(command, "invoke", invoke)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)

    def start(words):
        module = module_of(words)
        monkeypatch.setattr(sys, "argv", words if words[0] in COMMANDS else words[2:])
        main = partial(typer.run, module.main) if takes_options(module.main) else module.main
        with pytest.raises(Began):
            main()

    return start


def module_of(words):
    """Return the module that has a command's `main`."""
    if words[0] in COMMANDS:
        return importlib.import_module(MODULES[words[0].removeprefix("coe-")])
    module = importlib.import_module(words[2])
    return importlib.import_module(f"{words[2]}.__main__") if hasattr(module, "__path__") else module


def options_of(module):
    """Return the options of a command of typer and of its subcommands; of others, none."""
    app = getattr(module, "app", None)
    if app is None and takes_options(module.main):
        app = typer.Typer()
        app.command()(module.main)
    command = app and typer.main.get_command(app)
    commands = [command] if command else []
    for one in commands:  # it grows by the commands of groups
        commands += getattr(one, "commands", {}).values()
    parameters = [parameter for command in commands for parameter in command.params]
    return {option for each in parameters for option in (*each.opts, *each.secondary_opts)}


def takes_options(main):
    """Tell a function that typer makes a command of from one that reads the arguments itself."""
    return not set(inspect.signature(main).parameters) <= {"arguments"}


@pytest.mark.parametrize(("place", "words"), STARTED, ids=[f"{place} {' '.join(words)}" for place, words in STARTED])
def test_a_command_takes_its_arguments(begin, place, words):
    begin(words)


@pytest.mark.parametrize("wrong", ["coe-inspect --board a --images b --bord c", "python -m apps.demo.build --sed 1"])
def test_a_stale_option_is_seen(begin, wrong):
    with pytest.raises(SystemExit):
        begin(wrong.split())


def test_options_in_sentences_exist():
    modules = {module_of(words) for words in ([[name] for name in COMMANDS] + [words for _, words in STARTED])}
    known = {"--help"}.union(*(options_of(module) for module in modules))
    for page in pages.PAGES:
        inline = " ".join(words for words in pages.inline(page) if not words.startswith("python"))
        assert (page.name, set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", inline)) - known) == (page.name, set())


def test_links_lead_to_files_and_headings_and_make_has_the_targets_that_pages_name():
    dead = [
        (page.name, file.name, heading)
        for page in pages.PAGES
        for file, heading in pages.links(page)
        if not file.exists() or (heading and heading not in pages.headings(file))
    ]
    assert dead == []
    targets = set(re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[1] for _, words in LINES if words[0] == "make" and words[1][0] != "-"}
    inline = [words for page in pages.PAGES for words in pages.inline(page)]
    named |= {target for words in inline for target in re.findall(r"^make ([a-z-]+)", words)}
    assert named <= targets
    assert named


def test_what_a_kind_may_import_from_experts_is_there():
    page = (pages.ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    table = page.partition("### Functions for your kind")[2].partition("### Rules for a kind")[0]
    module, names = "", 0
    for source, words in re.findall(r"^\|([^|]*)\|([^|]*`[^|]*)\|", table, re.MULTILINE):
        module = source.strip(" `") or module
        for name in re.findall(r"`(\w+)`", words):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
            names += 1
    assert names == 9


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/plugins.md", "docs/cluster.md", "CONTRIBUTING.md"])
def test_files_that_a_tour_names_are_there(name):
    page = pages.ROOT / name
    files = [
        file.as_posix()
        for folder in ("coe", "experts", "apps", "tests")
        for file in (pages.ROOT / folder).rglob("*.py")
    ]
    named = {word for word in pages.inline(page) if re.fullmatch(r"[\w/]+\.py", word)}
    assert {word for word in named if not any(file.endswith(f"/{word}") for file in files)} == set()


SIMULATED = simulated_figures.read()
SAMPLE = [next(row for row in reversed(SIMULATED) if row["run"] == name) for name in simulated_figures.runs()]


@pytest.mark.parametrize("row", with_slow_rows(SAMPLE[::-1], fast=1), ids=lambda row: row["run"])
def test_simulated_rows_are_those_of_today(row):
    (found,) = simulated_figures.simulate(simulated_figures.again(row, simulated_figures.runs()[row["run"]]))
    for name in simulated_figures.FIGURES:
        assert float(found[name]) == pytest.approx(float(row[name]), rel=1e-5), (
            f"{name} has changed; simulate the figures again: python tests/support/simulated_figures.py"
        )


def test_the_figures_on_the_page_are_those_of_the_data_and_of_their_rows():
    assert results_page.PAGE.read_text(encoding="utf-8") == results_page.page(), "write it: tests/support/results_page"
    data = results_page.DATA.read_text(encoding="utf-8")
    for words, figure in simulated_figures.measured(SIMULATED).items():
        assert f'["{words}", "{figure}"' in data, "write it again: python tests/support/simulated_figures.py"


MAKE = ["make", "--no-print-directory", "-kf", "apps/gpu_runs.mk"]
SHOWN = subprocess.run([*MAKE, "-n", "OUT=no/such"], cwd=pages.ROOT, capture_output=True, text=True, check=True).stdout
STEPS = re.compile(r"^(?!==)\S+$", re.MULTILINE)
COMMANDS_RUNS = re.findall(r"""coe-(\w+)"; \w+\(\)' (.*?) >> no/such/log.txt""", SHOWN)


@pytest.mark.parametrize(("tool", "arguments"), COMMANDS_RUNS)
def test_each_command_is_understood(tool, arguments):
    words = shlex.split(arguments)
    group = typer.main.get_command(importlib.import_module(MODULES[tool]).app)
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    group.make_context(tool, words)


def made(folder, code, *steps):
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{code}\n", encoding="ascii")
    stub.chmod(0o755)
    words = [*MAKE, f"OUT={folder}", f"PYTHON={stub}", *steps]
    return subprocess.Popen(words, cwd=pages.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_what_succeeded_is_not_run_again_and_a_step_waits_for_the_one_it_needs(tmp_path):
    fails = 'case "$*" in *cycles*|*synth*board\\ A*) exit 3;; esac'
    first, _ = made(tmp_path, fails).communicate()
    assert [name in first.split() for name in ("A-synth", "A-line-mixed", "B-line-mixed")] == [True, False, True]
    for name in ("A-synth.done", "B-samba-fp32.done", "B-samba-fp32.tried"):
        (tmp_path / name).unlink(missing_ok=True)
    again = made(tmp_path, fails, "A-prepare", "all")
    assert STEPS.findall(again.communicate()[0]) == ["A-synth", "B-samba-fp32", "cycles"]  # never tried, then failed
    named = made(tmp_path, "", "A-prepare")
    assert STEPS.findall(named.communicate()[0]) == ["A-synth", "A-prepare"]
    assert (again.returncode, named.returncode) == (2, 0)
    for tried in tmp_path.glob("*.tried"):
        tried.unlink()
    without = made(tmp_path, "exit 1")  # there is no GPU
    assert ("GPU" in without.communicate()[0], without.returncode, [*tmp_path.glob("*.tried")]) == (True, 2, [])


def test_a_step_ends_with_the_runs_and_was_not_tried(tmp_path):
    runs = made(tmp_path, f'case "$*" in *pytest*) echo $$ > {tmp_path}/pid; exec sleep 600;; esac', "tests")
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert runs.poll() is None
        time.sleep(0.02)
    step = psutil.Process(int(pid.read_text()))
    runs.terminate()
    runs.communicate()
    assert runs.returncode != 0
    psutil.wait_procs([step], timeout=60)
    assert not step.is_running() or step.status() == psutil.STATUS_ZOMBIE
    assert not (tmp_path / "tests.tried").exists()


@pytest.mark.parametrize("family", policies.FAMILIES)
def test_the_policies_on_the_page_are_those_that_ship(family):
    page = (pages.ROOT / "docs/strategies.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {family} \| (`.*`) \|$", page, re.MULTILINE)
    named = re.findall(r"`([\w-]+)`", row)
    assert sorted(named) == sorted(policies.names(family))
    assert named[0] == getattr(Strategy("default"), family)
