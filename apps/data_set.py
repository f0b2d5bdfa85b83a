"""Data sets that are not included: where they lie, tables of their images, and programs about them.

A table is for `coe-inspect --images <out>/images.csv`; no image is copied.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from coe.errors import CoeError
from coe.pictures.photographs import TABLE
from coe.store.kinds import Progress

LINK = "data"
"""A link to the data set in the table's folder: a table may only name images under its own folder."""
COLUMNS = ("path", "component", "serial", "refdes", "reference")
_LINKED = (0, 4)


class DataMissing(CoeError):
    """The images are not in the folder that was searched; the message says what to do."""


def find(data: Path | None, name: str, *inside: str) -> Path:
    """Return a data set's folder: the first given of `data`, $COE_DATA and ../shared/data, or its folder `name`.

    The data set has the files and folders `inside`. Raises DataMissing if there is none.
    """
    root = data or Path(os.environ.get("COE_DATA") or "../shared/data")
    for folder in (root, root / name):
        if all((folder / one).exists() for one in inside):
            return folder
    raise DataMissing(f"no images under '{root}'; name the folder that holds '{name}' with --data or COE_DATA")


def run(main: Callable[..., None]) -> None:
    """Run a program of typer; an error of CoE is one sentence, and exit status 2."""
    try:
        typer.run(main)
    except CoeError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)


def say_epochs(name: str) -> Progress:
    """Return a function that prints a line for each epoch of a training, with the seconds since now."""
    began = time.monotonic()

    def progress(done: int, of: int, measures: dict[str, float]) -> None:
        words = "  ".join(f"{key} {value:.4f}" for key, value in measures.items() if key != "epoch")
        typer.echo(f"{name}: epoch {done}/{of}, {time.monotonic() - began:.0f} s  {words}")

    return progress


def write_table(folder: Path, out: Path, rows: Iterable[tuple[Path | str, ...]]) -> Path:
    """Write `out/images.csv` and return its path.

    A row is (path inside `folder`, component, serial, refdes), and the path of a reference for images that bring one.
    """
    out.mkdir(parents=True, exist_ok=True)
    link = out / LINK
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder.resolve(), target_is_directory=True)
    with (out / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(
            [Path(LINK, cell).as_posix() if place in _LINKED else cell for place, cell in enumerate(row)]
            for row in rows
        )
    return out / TABLE
