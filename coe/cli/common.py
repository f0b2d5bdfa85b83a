"""What all commands share: consoles, exit statuses, and how an error is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum

import typer
from rich.console import Console

from coe.errors import CoeError, ConfigError, StoreError
from coe.files import NotWritten

out = Console(highlight=False)
"""Standard output: what was asked for."""
err = Console(stderr=True, highlight=False)
"""Standard error: progress and complaints. rich honours NO_COLOR and pipes on both."""


class Exit(IntEnum):
    """Exit statuses of all commands."""

    OK = 0
    NOT_GOOD = 1
    USAGE = 2
    NOT_INSPECTED = 3
    NOT_WRITTEN = 4
    INTERRUPTED = 130


_WIDE = 240
"""The width of a table that goes into a file or a pipe, in columns."""


def wide(console: Console) -> Console:
    """Return a console for tables: that of a terminal as it is, elsewhere one with a line a row, for grep and diff."""
    return console if console.is_terminal else Console(stderr=console.stderr, highlight=False, width=_WIDE)


def complain(error: BaseException | str) -> None:
    """Show an error as one sentence."""
    err.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)


def run(app: typer.Typer) -> None:
    """Run a command; what goes wrong on purpose ends in a sentence and an exit status, without a traceback."""
    _guard(app)


def _guard(command: Callable[[], None]) -> None:
    try:
        command()
    except NotWritten as error:
        complain(error)
        sys.exit(Exit.NOT_WRITTEN)
    except (ConfigError, StoreError) as error:
        complain(error)
        sys.exit(Exit.USAGE)
    except CoeError as error:
        complain(error)
        sys.exit(Exit.NOT_INSPECTED)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); there is nobody left to tell.
        sys.stderr.close()
        sys.exit(Exit.OK)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(Exit.INTERRUPTED)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def application(help_text: str) -> typer.Typer:
    """Return an application with our conventions: no shell completion, markup in help, errors left to `run`."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
