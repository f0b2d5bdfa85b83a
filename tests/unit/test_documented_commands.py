"""Each command in README and docs works as it stands: the command itself reads its arguments, and is ended there."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pages
import pytest
import typer

COMMANDS = ("coe-inspect", "coe-experts", "coe-bench", "coe-profile")
LINES = [
    (place, shlex.split(re.sub(r"\$\w+", "1", line), comments=True))  # a loop's variable is a number
    for place, line in pages.commands()
    if re.match(r"coe-|python -m apps\.|make ", line)
]
STARTED = [(place, words) for place, words in LINES if words[0] != "make"]


class Began(BaseException):
    """The arguments were taken, and the command's work would begin now."""


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Start a command, of typer or of argparse, up to where its work begins."""

    def invoke(command: Any, context: Any) -> None:
        if not hasattr(command, "commands"):  # a group goes on with the command that was named
            raise Began

    def parse_args(parser: argparse.ArgumentParser, *arguments: Any) -> None:
        parse(parser, *arguments)
        raise Began

    parse = argparse.ArgumentParser.parse_args
    (command,) = (parent for parent in typer.core.TyperCommand.__mro__ if parent.__name__ == "Command")
    monkeypatch.setattr(command, "invoke", invoke)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)

    def start(words: list[str]) -> None:
        module = module_of(words)
        monkeypatch.setattr(sys, "argv", words if words[0] in COMMANDS else words[2:])
        with pytest.raises(Began):
            if set(inspect.signature(module.main).parameters) <= {"arguments"}:
                module.main()
            else:
                typer.run(module.main)

    return start


def module_of(words: list[str]) -> Any:
    """Return the module that has a command's `main`."""
    if words[0] in COMMANDS:
        return importlib.import_module(f"coe.cli.{words[0].removeprefix('coe-')}")
    module = importlib.import_module(words[2])
    return importlib.import_module(f"{words[2]}.__main__") if hasattr(module, "__path__") else module


def options_of(command: Any) -> Iterator[str]:
    """Yield the options of a command and of all its subcommands."""
    for parameter in command.params:
        yield from parameter.opts
    for subcommand in getattr(command, "commands", {}).values():
        yield from options_of(subcommand)


@pytest.mark.parametrize(("place", "words"), STARTED, ids=[f"{place} {' '.join(words)}" for place, words in STARTED])
def test_a_command_takes_its_arguments(begin: Callable[[list[str]], None], place: str, words: list[str]) -> None:
    begin(words)


@pytest.mark.parametrize("wrong", ["coe-inspect --board a --images b --bord c", "python -m apps.demo.build --sed 1"])
def test_a_stale_option_is_seen(begin: Callable[[list[str]], None], wrong: str) -> None:
    with pytest.raises(SystemExit):
        begin(wrong.split())


def test_options_in_sentences_exist() -> None:
    apps = [typer.main.get_command(module_of([name]).app) for name in COMMANDS]
    known = {"--help", *(option for app in apps for option in options_of(app))}
    stale = [
        (page.name, option)
        for page in pages.PAGES
        for words in pages.inline(page)
        if not words.startswith("python")
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)
        if option not in known
    ]
    assert stale == []


def test_make_has_the_targets_that_pages_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[1] for _, words in LINES if words[0] == "make"}
    named |= {target for page in pages.PAGES for words in pages.inline(page) for target in re.findall(r"^make ([a-z-]+)", words)}
    assert named <= targets
    assert named
