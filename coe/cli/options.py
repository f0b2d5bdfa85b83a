"""A command is a class of options whose `run` returns a record; signature, help, table and `--json` are made from it.

Typer reads the fields of the class, which are its own options and arguments. Groups are options that commands share.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature, get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer
from typer.models import OptionInfo

from coe import config
from coe.cli.common import out, show
from coe.cli.start import Exit
from coe.errors import ConfigError
from coe.inspector.line_options import OPTIONS, Door, LineArguments, LineOptions, options_of, taken

if TYPE_CHECKING:
    from coe.board.rules import Rules


@dataclass(frozen=True, slots=True)
class Record:
    """What a command found: its rows, by the headings of their table, and its exit status.

    A value is written as `str` writes it, and stays what it is in JSON: see `Share` and `Size`.
    """

    rows: Sequence[Mapping[str, Any]]
    status: Exit = Exit.OK


class Share(float):
    """A share, shown in per cent."""

    def __str__(self) -> str:
        return f"{float(self):.2%}"


class Size(int):
    """A number of bytes, shown as people write it."""

    def __str__(self) -> str:
        return config.format_bytes(int(self))


def option(help: str, default: Any = None, *flags: str, **more: Any) -> Any:
    """Return an option of a command; with the default `...` it must be given. A bool that is False has no `--no-`."""
    return typer.Option(default, *flags, help=help, **more)


def argument(help: str, default: Any = None, **more: Any) -> Any:
    """Return an argument of a command; with the default `...` it must be given."""
    return typer.Argument(default, help=help, **more)


class Options:
    """A command, or a group of options that commands share: the base class of all.

    The annotations of a class are its options, and their values are made by `option` and `argument`. The
    docstring of a command is its help, and its name in small letters that of the command. In the help its own options
    come first, then those of the groups it inherits from.
    """

    door: ClassVar[Door]
    """Where a command that opens a line (`OnLine`) stands."""

    def __init__(self, **given: Any) -> None:
        """Options that are not given have the defaults of the command line."""
        groups = reversed(type(self).__mro__[: type(self).__mro__.index(Options)])
        fields = ((name, vars(group).get(name)) for group in groups for name in get_annotations(group))
        vars(self).update({name: getattr(value, "default", value) for name, value in fields} | given)

    def run(self) -> Record | Exit | None:
        """Do what the command is for; returns its record or its exit status. Raises CoeError."""
        raise NotImplementedError


def add(app: typer.Typer, *commands: type[Options]) -> None:
    """Add commands to an application; one that returns a record has `--json`."""
    for command in commands:
        app.command(command.__name__.lower())(_function(command))


def _function(command: type[Options]) -> Callable[..., None]:
    """Return the function of a command, as typer wants one."""
    parameters = list(_fields(command))
    if get_type_hints(command.run).get("return") is Record:
        help = "Print the table as JSON on standard output, everything else on standard error."
        parameters.append(_field("rows_as_json", False, Annotated[bool, typer.Option("--json", help=help)]))

    def run(**given: Any) -> None:
        before, out.stderr = out.stderr, given.pop("rows_as_json", False)
        try:
            record = command(**given).run()
            if isinstance(record, Record):
                show(record.rows)
        finally:
            as_json, out.stderr = out.stderr, before
        if isinstance(record, Record):
            if as_json:  # directly to the stream: a console would wrap text that a program reads
                sys.stdout.write(json.dumps(record.rows, default=str) + "\n")
            record = record.status
        raise typer.Exit(record or Exit.OK)

    run.__doc__ = command.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _fields(command: type[Options]) -> Iterator[Parameter]:
    """Yield the options of a command, its own first, then those of its groups."""
    hints = get_type_hints(command, include_extras=True)
    for group in command.__mro__[:-2]:
        for name in get_annotations(group) if issubclass(group, Options) else ():
            if name == "line":
                yield from _of_line(command.door)
            else:
                value = getattr(command, name, Parameter.empty)
                if isinstance(value, OptionInfo) and value.default is False:
                    value.param_decls = value.param_decls or (f"--{name.replace('_', '-')}",)
                yield _field(name, value, hints[name])


def _field(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _of_line(door: Door) -> Iterator[Parameter]:
    """Yield the options of a line that a door shows, and the one that shows those that are rare."""
    for name in options_of(door):
        option, field = OPTIONS[name], LineOptions.model_fields[name]
        value = None if option.default or option.typed == list[str] else field.default
        if door in option.defaults:
            value = option.defaults[door][0]
        kind = option.typed if value is not None else option.typed | None
        yield _field(name, value, Annotated[kind, line_option(name, door)])
    help = "Show all options, including rare ones, and exit."
    yield _field(
        "help_all", False, Annotated[bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help=help)]
    )


def line_option(name: str, door: Door | None = None) -> Any:
    """Return an option of a line as commands show it."""
    option = OPTIONS[name]
    words = option.defaults[door][1] if door is not None and door in option.defaults else option.default
    flag = option.flag or f"--{name.replace('_', '-')}"
    return typer.Option(
        f"{flag}/--no-{flag[2:]}" if option.typed is bool else flag,
        help=f"{option.help} Default: {words}." if words else option.help,
        hidden=option.rare and door is not None,
        metavar=option.metavar,
        callback=found_here if name == "allow_kinds" else None,
        min=option.least if option.most else None,
        max=option.most or None,
    )


def found_here(packages: list[str] | None) -> list[str] | None:
    """Let Python find the packages that are allowed in the working folder, too, after all other places."""
    if packages and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return packages


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Show the help of a command with the options that it leaves out otherwise."""
    if not wanted:
        return
    hidden = [parameter for parameter in context.command.params if getattr(parameter, "hidden", False)]
    for parameter in hidden:
        parameter.hidden = False  # type: ignore[attr-defined]
    typer.echo(context.get_help())
    for parameter in hidden:
        parameter.hidden = True  # type: ignore[attr-defined]
    raise typer.Exit


class OnLine(Options):
    """The options of a line that the door of a command shows."""

    line: LineArguments

    def __init__(self, **given: Any) -> None:
        shown = [name for name in options_of(self.door) if name in given]
        super().__init__(line=taken({name: given.pop(name) for name in shown}), **given)


StoreOption = Annotated[Path | None, line_option("store")]
AllowKindOption = Annotated[list[str] | None, line_option("allow_kinds")]
MaxWaitOption = Annotated[str | None, line_option("max_wait_s")]
WithinOption = Annotated[
    str | None,
    typer.Option(
        help="A board's result is due this long after its first image arrives, e.g. 5s. late-binding prioritises "
        "boards that may become late; late results are reported."
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, max=config.MAX_SEED, help="Seed of all random choices.")]
WorkOption = Annotated[Path, typer.Option("--work", help="Folder for synthetic weights, kept for next time.")]
WORK = Path("build/bench")
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is standard output.")
]
A_BOARD = "Board: a name or a YAML file of rules."


class OfBoard(Options):
    """A command about a board."""

    board: str = argument(A_BOARD, ...)

    @cached_property
    def rules(self) -> Rules:
        """The board; raises ConfigError, RulesError."""
        from coe.board import rules

        return rules.load(self.board)


def refuse(context: typer.Context, names: str, why: str, *, by_default: bool = True) -> None:
    """Raise ConfigError for the first of these parameters of a command that was given, because it would be ignored.

    With `by_default` an option may say what holds without it: it is ignored, and does no harm. `names` has blanks
    between them.
    """
    known = {parameter.name: parameter for parameter in context.command.params}
    for name in names.split():
        # By name: typer has moved the class from version to version.
        is_given = (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
        if is_given and not (by_default and context.params[name] == known[name].get_default(context)):
            raise ConfigError(f"{known[name].opts[0]} {why}; leave it out")


def finite(value: float | None) -> float | None:
    """Check an option: refuse infinity and not-a-number, which pass every range. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a usable number.")
    return value


def seconds(text: str | None) -> float | None:
    """Read a time, as 5s; None stays None. Raises ConfigError if the text is no time."""
    return None if text is None else config.parse_seconds(text)


def words_of(text: str) -> list[str]:
    """Return the words of a list with commas, without spaces around them.

    An empty word stays: the command, which knows the words that there are, refuses it. A comma too many is no choice.
    """
    return [word.strip() for word in text.split(",")]


STANDARD_OUTPUT = "-"


def check_json(where: str | None) -> None:
    """Check before a long run that its rows can be written; raises ConfigError."""
    if where is None or where == STANDARD_OUTPUT:
        return
    if reason := why_not(Path(where)):
        raise ConfigError(f"--json: {where} {reason}; name a file, or - for standard output")


def write_json(text: str, where: str | None) -> None:
    """Write JSON to a file, to standard output with "-", or nowhere; raises ConfigError."""
    if where == STANDARD_OUTPUT:
        sys.stdout.write(text)
    elif where is not None:
        try:
            Path(where).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json: {where} cannot be written: {error.strerror or error}") from error


def why_not(path: Path) -> str | None:
    """Return why no file can be written at a path, as the words after its name in a sentence; None if none is known."""
    if os.path.isdir(path):
        return "is a folder"
    if not os.path.isdir(path.parent):
        return f"cannot be written: there is no folder {path.parent}"
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # too long a name, or a NUL in it
        return f"cannot be written: {getattr(error, 'strerror', None) or error}"
    return None
