"""Options that commands share which prepare, measure or compare; the options of a line are in `coe.cli.options`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.errors import ConfigError

if TYPE_CHECKING:
    from coe.board.rules import Rules
    from coe.inspector.inspector import Picture

InputOption = Annotated[
    int | None,
    typer.Option("--input", min=config.MIN_INPUT, max=config.MAX_INPUT, help="Longer side of the input in pixels."),
]
PolarityOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Components with a polarity, whose turned parts are defects, beside those known by name; - for none. "
        "Default: asked on a terminal.",
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, max=config.MAX_SEED, help="Seed of all random choices.")]


WorkOption = Annotated[Path, typer.Option("--work", help="Folder for synthetic weights; kept for the next time.")]
WORK = Path("build/bench")
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is standard output.")
]


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


def pictures_of(board: Rules, images_at: Path) -> list[Picture]:
    """Return all pictures that can be inspected; raises ConfigError if there are none."""
    from coe.cli.inspect_source import source_of
    from coe.inspector.inspector import Picture

    source = source_of(images_at, board, None, None)
    items = [item for item in source.items if item.failure is None]
    if not items:
        raise ConfigError(f"{images_at} holds no image of a component of board '{board.board}'")
    return [picture for picture in source.feed(items, None) if isinstance(picture, Picture)]


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
