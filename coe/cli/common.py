"""What all commands share: consoles, how a command is run, and how an error is shown."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from coe import config
from coe.cli.console import Console, styled
from coe.cli.exits import Exit
from coe.cli.streams import steady
from coe.errors import CoeError, ConfigError, StoreError, shortened
from coe.files import NotWritten
from coe.visible import visible

__all__ = ["Exit", "application", "complain", "err", "guarded", "out", "run", "wide"]

out = Console()
"""Standard output: what was asked for."""
err = Console(stderr=True)
"""Standard error: progress and complaints. rich honours NO_COLOR and pipes on both."""

_WIDE = 240
"""The width of a table that goes into a file or a pipe, in columns."""

_WRONG_USAGE: Any = next(parent for parent in typer.BadParameter.__mro__ if parent.__name__ == "ClickException")
"""The parent of all complaints about arguments: of click, which some versions of typer bring along themselves."""


def wide(console: Console) -> Console:
    """Return a console for tables: that of a terminal as it is, elsewhere one with a line a row, for grep and diff."""
    return console if console.is_terminal else Console(stderr=console.stderr, width=_WIDE)


def complain(error: BaseException | str) -> None:
    """Show an error as one sentence; of a very long one, its begin and its end."""
    err.print(styled(("error:", "bold red"), f" {shortened(str(error), config.SHOWN_ERROR)}"), soft_wrap=True)


def run(app: typer.Typer) -> None:
    """Run a command and exit; whatever goes wrong ends in a sentence and an exit status, without a traceback."""
    sys.exit(guarded(lambda: _invoke(app)))


def guarded(command: Callable[[], int]) -> int:
    """Run what returns an exit status; return that status, or that of what went wrong, which is told in a sentence.

    Nobody need read what is written. A status that tells of verdicts becomes NOT_WRITTEN where standard output could
    not take what was asked for; a reader who has gone away changes nothing.
    """
    with steady() as stdout:
        try:
            status = command()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except KeyboardInterrupt:
            err.print("interrupted")
            return Exit.INTERRUPTED
        except Exception as error:
            return _told(error)
        stdout.flush()
        if stdout.lost and status in (Exit.OK, Exit.NOT_GOOD, Exit.NOT_INSPECTED):
            complain(f"standard output cannot be written: {stdout.lost}")
            return Exit.NOT_WRITTEN
        return status


def _told(error: Exception) -> Exit:
    """Tell what went wrong; return the status for it."""
    if not isinstance(error, CoeError):
        return _fault(error)
    complain(error)
    if isinstance(error, NotWritten):
        return Exit.NOT_WRITTEN
    return Exit.USAGE if isinstance(error, ConfigError | StoreError) else Exit.NOT_INSPECTED


def _fault(error: Exception) -> Exit:
    """Tell of an error that nobody foresaw: never with the status that means NG."""
    if os.environ.get(config.TRACEBACK_VARIABLE):
        err.print(*traceback.format_exception(error), sep="")
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(place[0].filename).name}:{place[0].lineno})" if place else ""
    complain(
        f"a fault of coe, not of yours: {type(error).__name__}: {error}{where}; please report it, with what "
        f"{config.TRACEBACK_VARIABLE}=1 shows"
    )
    return Exit.NOT_INSPECTED


def _invoke(app: typer.Typer) -> int:
    """Run an application on the arguments of the process; return its exit status.

    Not by calling it: typer would answer an interruption and a closed pipe by itself, in silence and with status 1.
    """
    command = typer.main.get_command(app)
    try:
        with command.make_context(visible(Path(sys.argv[0]).name), sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except _WRONG_USAGE as error:
        from typer.rich_utils import rich_format_error

        error.message = visible(error.message)  # it repeats arguments
        rich_format_error(error)
        return int(error.exit_code)
    return Exit.OK


def application(help_text: str) -> typer.Typer:
    """Return an application with our conventions: no shell completion, markup in help, errors left to `run`."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
