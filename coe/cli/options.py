"""Options that several commands share, with the same help texts; each command names its default."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.scheduler.strategies import Times

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help=f"Folder of the experts. Default: ${config.STORE_VARIABLE}, or ./store."),
]
LabelFloorOption = Annotated[
    float,
    typer.Option(
        "--label-floor",
        help="Use a cheaper precision for an expert only if at least this share of its labels agrees with fp32.",
    ),
]
DeviceMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--device-memory",
        help="GPU memory for experts and batches, as 8GiB. Default: most of the free memory.",
    ),
]
HostMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--host-memory", help=f"With a GPU: host memory for copies of experts, as 4GiB. Default: {config.HOST_MEMORY}."
    ),
]
SearchKernelsOption = Annotated[
    bool,
    typer.Option(
        "--search-kernels/--no-search-kernels",
        help="With a GPU: before the first image, search for the quickest kernels. Without, a line opens sooner.",
    ),
]
WithinOption = Annotated[
    str | None,
    typer.Option(
        "--within",
        help="Time from an image's arrival until its board's result is due, as 5s. The strategy line runs what is due "
        "first; late results are reported.",
    ),
]
MaxWaitOption = Annotated[
    str | None,
    typer.Option(
        "--max-wait",
        help="The longest time an image may take, as 60s. After half of it the strategy line runs the image first. "
        f"Default: {config.MAX_WAIT_S:g}s.",
    ),
]
InputOption = Annotated[
    int | None,
    typer.Option("--input", min=config.MIN_INPUT, max=config.MAX_INPUT, help="Side of the square input in pixels."),
]
SeedOption = Annotated[int, typer.Option(min=0, max=config.MAX_SEED, help="Seed of all random choices.")]


def found_here(packages: list[str] | None) -> list[str] | None:
    """Let Python find the packages that are allowed in the working folder, too, after all other places."""
    if packages and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return packages


AllowKindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-kind",
        metavar="PACKAGE",
        callback=found_here,
        help="Allow the board to name kinds of this Python package, installed or in the working folder, by a dotted "
        "path; their code will run. Repeatable.",
    ),
]
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


def finite(value: float | None) -> float | None:
    """Check an option: refuse infinity and not-a-number, which pass every range. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be used.")
    return value


def above_zero(value: float | None) -> float | None:
    """Check an option that must be more than 0; raises typer.BadParameter."""
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0.")
    return finite(value)


def times(within: str | None, max_wait: str | None) -> Times:
    """Read `--within` and `--max-wait`; raises ConfigError if a text is no time."""
    within_s, max_wait_s = (config.parse_seconds(text) if text is not None else None for text in (within, max_wait))
    return Times(max_wait_s, within_s)
