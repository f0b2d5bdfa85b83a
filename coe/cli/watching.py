"""The options of `coe-inspect --watch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coe.cli.options import seconds
from coe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Watching:
    """What `--watch` and its options say; times in seconds."""

    folder: Path
    settle_s: float
    quiet_s: float
    done: Path | None
    idle_s: float | None


def watching_of(
    watch: Annotated[
        Path | None,
        typer.Option(
            "--watch",
            metavar="FOLDER",
            help="Instead of --images: inspect what comes into this folder, until Ctrl-C. Layouts as for --images, "
            "without a table. The same command goes on where it was.",
        ),
    ] = None,
    settle: Annotated[
        str,
        typer.Option(
            help="With --watch: how long size and time of a file must stand still before it is judged. One that is "
            "renamed from an upload's name (R1.png.part, .R1.png.x7) to its own is judged at once."
        ),
    ] = "2s",
    quiet_time: Annotated[
        str,
        typer.Option(
            help="With --watch: a board that is not known to be complete (--parts, --expect) is closed once no "
            "picture of it came for so long."
        ),
    ] = "30s",
    done: Annotated[
        Path | None,
        typer.Option(
            "--done", metavar="FOLDER", help="With --watch: move each picture that has its verdict into this folder."
        ),
    ] = None,
    until_idle: Annotated[
        str | None, typer.Option(help="With --watch: end once nothing has come for so long, as 10min. Default: never.")
    ] = None,
) -> Watching | None:
    """Return what to watch; None without `--watch`. Raises ConfigError."""
    if watch is None:
        if done is not None or until_idle is not None:
            raise ConfigError("--done and --until-idle belong to --watch FOLDER")
        return None
    if done is not None and done.resolve().is_relative_to(watch.resolve()):
        raise ConfigError(f"--done {done} lies in the watched folder, so it would be inspected again; choose another")
    times = seconds(settle) or 0.0, seconds(quiet_time) or 0.0
    return Watching(watch, *times, done, seconds(until_idle))
