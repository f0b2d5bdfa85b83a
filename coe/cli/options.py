"""Options that several commands share, with the same help texts; each command names its default."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from coe import config
from coe.errors import ConfigError
from coe.inspector.line_arguments import LineArguments
from coe.inspector.line_options import OPTIONS, LineOptions, options_of, taken
from coe.inspector.option import Door


def found_here(packages: list[str] | None) -> list[str] | None:
    """Let Python find the packages that are allowed in the working folder, too, after all other places."""
    if packages and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return packages


_HELP_ALL = "Show all options, also those that are rarely used, and exit."


def line_option(name: str, door: Door | None = None) -> Any:
    """Return an option of a line as commands show it."""
    option = OPTIONS[name]
    words = option.defaults[door][1] if door is not None and door in option.defaults else option.default
    flag = option.flag or f"--{name.replace('_', '-')}"
    return typer.Option(
        f"{flag}/--no-{flag[2:]}" if option.typed is bool else flag,
        help=f"{option.help} Default: {words}." if words else option.help,
        hidden=option.rare and door is not Door.RUN,
        metavar=option.metavar,
        callback=found_here if name == "allow_kinds" else None,
        min=option.least if option.most else None,
        max=option.most or None,
    )


def takes(name: str, maker: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `maker` in the place of its parameter `name`, which gets what `maker` returns."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        made = {parameter.name: parameter for parameter in _parameters(maker)}

        def run(**given: Any) -> None:
            value = maker(**{option: given.pop(option) for option in made})
            command(**given, **{name: value})

        parameters: list[Parameter] = []
        for parameter in _parameters(command):
            parameters += made.values() if parameter.name == name else [parameter]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the parameters of a function with their types; that of a module that is not imported stays a text."""
    for parameter in signature(function).parameters.values():
        kind = parameter.annotation
        with suppress(NameError):
            kind = eval(kind, function.__globals__) if isinstance(kind, str) else kind
        yield parameter.replace(annotation=kind)


def takes_line_options(door: Door) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a line that a door shows, in the place of its parameter `line`, which gets them."""

    def read(help_all: bool, **given: Any) -> LineArguments:
        return taken(given)

    help_all = Annotated[bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help=_HELP_ALL)]
    shown = [_parameter(name, door) for name in options_of(door)]
    last = Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=help_all)
    read.__signature__ = Signature([*shown, last])  # type: ignore[attr-defined]
    return takes("line", read)


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


def _parameter(name: str, door: Door) -> Parameter:
    option, field = OPTIONS[name], LineOptions.model_fields[name]
    value = None if option.default or option.typed == list[str] else field.default
    if door in option.defaults:
        value = option.defaults[door][0]
    kind = option.typed if value is not None else option.typed | None
    annotation = Annotated[kind, line_option(name, door)]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=annotation)


StoreOption = Annotated[Path | None, line_option("store")]
AllowKindOption = Annotated[list[str] | None, line_option("allow_kinds")]
MaxWaitOption = Annotated[str | None, line_option("max_wait_s", Door.RUN)]
WithinOption = Annotated[
    str | None,
    typer.Option(
        "--within",
        help="Time from an image's arrival until its board's result is due, as 5s. With late-binding, what is due runs "
        "first; late results are reported.",
    ),
]


def finite(value: float | None) -> float | None:
    """Check an option: refuse infinity and not-a-number, which pass every range. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be used.")
    return value


def seconds(text: str | None) -> float | None:
    """Read a time, as 5s; None stays None. Raises ConfigError if the text is no time."""
    return None if text is None else config.parse_seconds(text)
