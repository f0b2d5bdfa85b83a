"""Help texts: each command shows one example, and the command reads it."""

import shlex

import pytest
import typer

from coe.cli import board_command, experts_command, inspect, profile_command
from coe.lab.cli import bench
from coe.serve import command as serve

APPLICATIONS = {
    "coe-bench": bench,
    "coe-board": board_command,
    "coe-experts": experts_command,
    "coe-inspect": inspect,
    "coe-profile": profile_command,
    "coe-serve": serve,
}


def commands():
    """Return all commands by the words that call them."""
    listed = []
    for name, module in APPLICATIONS.items():
        command = typer.main.get_command(module.app)
        listed += _inside(name, command)
    return listed


def _inside(name, command):
    parts = getattr(command, "commands", None)
    return [one for part in parts for one in _inside(f"{name} {part}", parts[part])] if parts else [(name, command)]


@pytest.mark.parametrize(("name", "command"), [pytest.param(name, command, id=name) for name, command in commands()])
def test_each_command_shows_one_example_that_it_reads(name, command):
    examples = [line.strip() for line in command.help.splitlines() if line.strip().startswith("Example:")]

    assert len(examples) == 1
    words = shlex.split(examples[0].removeprefix("Example:"))
    assert " ".join(words[: len(name.split())]) == name
    command.make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize(("name", "command"), [pytest.param(name, command, id=name) for name, command in commands()])
def test_help_cuts_no_flag_and_no_sentence_off(name, command):
    text = "".join(command.get_help(command.make_context(name, [], resilient_parsing=True)).split())

    shown = [option for option in command.params if not option.hidden]
    said = [
        *(flag for option in shown for flag in option.opts if flag[0] == "-"),
        *(option.help for option in shown if option.help),
    ]
    assert [one for one in said if "".join(one.split()) not in text] == []


@pytest.mark.parametrize("name", ["coe-bench", "coe-board", "coe-experts", "coe-serve"])
def test_the_list_of_commands_has_whole_sentences(name, call):
    text = "".join(call("--help", command=APPLICATIONS[name]).out.split())

    first = [command.help.partition("\n\n")[0] for words, command in commands() if words.rpartition(" ")[0] == name]
    assert [one for one in first if "".join(one.split()) not in text] == []


@pytest.mark.parametrize(("name", "command"), [pytest.param(name, command, id=name) for name, command in commands()])
def test_each_option_is_explained(name, command):
    silent = [option.name for option in command.params if not getattr(option, "help", None) and option.name != "help"]

    assert silent == []


@pytest.mark.parametrize(("name", "command"), [pytest.param(name, command, id=name) for name, command in commands()])
def test_each_option_is_in_small_letters_whatever_typer_makes_of_a_metavar(name, command):
    flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]

    assert flags == [flag.lower() for flag in flags]


def test_rare_options_are_shown_on_request(call):
    usual, all_ = call("--help", command=inspect), call("--help-all", command=inspect)
    assert (usual.status, all_.status) == (0, 0)
    assert ("--strategy" in usual.out, "--strategy" in all_.out) == (False, True)
    assert "--help-all" in usual.out
    assert call("--help", command=inspect).out == usual.out
