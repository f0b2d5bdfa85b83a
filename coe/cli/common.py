"""Shared by all commands: the consoles, the run of a command, and the display of errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TimeRemainingColumn
from rich.table import Column

from coe import config
from coe.cli.console import Console, Progress, styled, table_of_rows, words
from coe.cli.start import Exit, steady, way_out
from coe.errors import CoeError, ConfigError, StoreError, place_of, sentence_of, shortened
from coe.helpers import versions
from coe.helpers.files import NotWritten
from coe.helpers.strict_model import value_fault
from coe.helpers.visible import visible

__all__ = ["Exit", "application", "complain", "err", "guarded", "out", "run", "show", "wide"]

out = Console()
"""Standard output: the results of a command."""
err = Console(stderr=True)
"""Standard error: progress and complaints. rich honours NO_COLOR and pipes on both."""

_WRONG_USAGE: Any = next(parent for parent in typer.BadParameter.__mro__ if parent.__name__ == "ClickException")
"""The parent of all errors about arguments. It is click's; some versions of typer contain their own click."""


def wide(console: Console) -> Console:
    """Return a console for tables: on a terminal the console itself, elsewhere one as wide as its table."""
    return console if console.is_terminal else Console(stderr=console.stderr)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table; nothing without rows."""
    if rows:
        wide(out).print(table_of_rows(rows))


def counting(doing: str, *after: ProgressColumn, transient: bool = False) -> Progress:
    """Return a bar on standard error that says what is done, and how often of how many times."""
    columns = (words(doing, style="bold"), BarColumn(), MofNCompleteColumn(), *after)
    return Progress(*columns, console=err, transient=transient)


class Steps:
    """Shows how far a command of few long steps is: in one bar on a terminal, elsewhere with a line for each step.

    What is said of a step stands last in the bar, and is cut first where the window is narrow.
    """

    def __init__(self, doing: str, total: int | None = None) -> None:
        said = words("{task.fields[said]}", Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        doing_first = words("{task.description}", style="bold")
        columns = (doing_first, BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, said, console=err, expand=True, disable=not err.is_terminal)
        self._task = self._bar.add_task(doing, total=total, said="")
        self._doing = doing

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def at(self, done: int, total: int, said: str = "", doing: str = "") -> None:
        """Show that so many of all steps are done, what there is to say of the last, and what is done from now on."""
        self._doing = doing or self._doing
        self._bar.update(self._task, completed=done, total=total, said=said, description=self._doing)
        if not err.is_terminal:
            err.print(f"{self._doing} {done}/{total}" + (f": {said}" if said else ""))


def complain(error: BaseException | str) -> None:
    """Show an error as one sentence; the middle of a very long sentence is left out."""
    err.print(styled(("error:", "bold red"), f" {shortened(str(error), config.SHOWN_ERROR)}"))


def point_out(word: str, sentence: str, console: Console = err) -> None:
    """Show a sentence behind a word that says what it is, as "note"."""
    console.print(styled((f"{word}:", "yellow"), f" {sentence}"))


def run(app: typer.Typer) -> None:
    """Run a command and exit; each error ends in a sentence and an exit status, without a traceback."""
    sys.exit(guarded(lambda: _invoke(app)))


def guarded(command: Callable[[], int]) -> int:
    """Run a command; return its exit status, or show an error as a sentence and return the error's status.

    A status about verdicts becomes NOT_WRITTEN if standard output could not be written; a reader who has closed the
    pipe changes no status.
    """
    with steady() as stdout:
        try:
            status = command()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except (KeyboardInterrupt, typer.Abort):  # Abort: while a question waits for its answer, or at the end of input
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
    """Show an error; return its exit status."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] not in ("coe", "experts"):
        complain(f"a library that this needs cannot be imported: {error}{way_out(error)}")
        return Exit.USAGE
    if not isinstance(error, CoeError):
        return _fault(error)
    complain(error)
    if isinstance(error, NotWritten):
        return Exit.NOT_WRITTEN
    return Exit.USAGE if isinstance(error, ConfigError | StoreError) else Exit.NOT_INSPECTED


def _fault(error: Exception) -> Exit:
    """Show an unexpected error; its exit status is never the status that means NG."""
    if os.environ.get(config.TRACEBACK_VARIABLE):
        for line in "".join(traceback.format_exception(error)).splitlines():
            err.print(line)
    complain(
        f"unexpected {sentence_of(error)}{place_of(error)}; {config.TRACEBACK_VARIABLE}=1 shows the calls. "
        "If none of them is in your code, please report them"
    )
    return Exit.NOT_INSPECTED


def _invoke(app: typer.Typer) -> int:
    """Run an application on the arguments of the process; return its exit status."""
    # The application is not called: typer would answer an interruption and a closed pipe in silence, with status 1.
    command = _command(app)
    try:
        with command.make_context(visible(Path(sys.argv[0]).name), sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except _WRONG_USAGE as error:
        from typer.rich_utils import rich_format_error

        if isinstance(fault := error.__cause__, ValidationError):
            error.message = value_fault(fault.errors()[0])
        error.message = visible(error.message)  # the message repeats arguments
        rich_format_error(error)
        return int(error.exit_code)
    return Exit.OK


@cache
def _command(app: typer.Typer) -> Any:
    # Typer evaluates the annotations of all commands, so a process that runs several does that once.
    command = _whole(typer.main.get_command(app))
    command.params.append(_version_option())
    return command


def _version_option() -> Any:
    """Return the option that shows the version, as typer makes options."""
    app = typer.Typer(add_completion=False)
    flag = typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version of CoE and exit.")
    app.command()(lambda version=False: None)
    made = app.registered_commands[0].callback
    assert made is not None
    made.__annotations__ = {"version": Annotated[bool, flag]}
    (option,) = (one for one in typer.main.get_command(app).params if one.name == "version")
    option.expose_value = False
    return option


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"{visible(Path(sys.argv[0]).name)} {versions.own()}")
        raise typer.Exit


def _whole(command: Any) -> Any:
    """Let the list of a command's parts have their whole first sentences, which else end after 45 characters."""
    for part in getattr(command, "commands", {}).values():
        _whole(part).short_help = part.help.partition("\n\n")[0]
    return command


def application(help_text: str, *, is_group: bool = False) -> typer.Typer:
    """Return an application with our conventions: no shell completion, help in plain text, errors left to `run`.

    In a window of 80 columns, typer's table of options by rich is twice as long and cuts long words and flags off. If
    it `is_group`, its only command is called by its name, too.
    """
    app = typer.Typer(
        help=help_text,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if is_group:
        app.callback()(lambda: None)
    return app
