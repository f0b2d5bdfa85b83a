"""Options that several commands have, in the same words; each command names its own default."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.scheduler.strategies import Times

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help=f"Folder of the experts. Default: ${config.STORE_VARIABLE}, else ./store."),
]
LabelFloorOption = Annotated[
    float,
    typer.Option(
        "--label-floor", help="Use no variant whose labels agree with those of fp32 in a smaller share than this."
    ),
]
DeviceMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--device-memory",
        help="Of the GPU, for the experts and batches of cuda executors. Default: most of the free.",
    ),
]
HostMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--host-memory", help=f"For copies of experts, beside a GPU's own memory. Default: {config.HOST_MEMORY}."
    ),
]
WithinOption = Annotated[
    str | None,
    typer.Option(
        "--within",
        help="When a board's result is due, counted from when an image is taken in, as 5s: the strategy line sees to "
        "what is due first, and what is late is told.",
    ),
]
MaxWaitOption = Annotated[
    str | None,
    typer.Option(
        "--max-wait",
        help="How long an image may be under way, as 60s; with the strategy line it goes first halfway there. "
        f"Default: {config.MAX_WAIT_S:g}s.",
    ),
]
InputOption = Annotated[
    int | None,
    typer.Option("--input", min=config.MIN_INPUT, max=config.MAX_INPUT, help="Side of the square input in pixels."),
]
SeedOption = Annotated[int, typer.Option(min=0, max=config.MAX_SEED, help="Of all that is drawn by chance.")]
AllowKindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-kind",
        metavar="PACKAGE",
        help="Let the board name kinds of this package by a dotted path: its code runs. Repeat it for several.",
    ),
]
WorkOption = Annotated[Path, typer.Option("--work", help="Folder for synthetic weights; kept for the next time.")]
WORK = Path("build/bench")
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is standard output.")
]


def finite(value: float | None) -> float | None:
    """Check an option: refuse what is not a number, which no range does. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be used.")
    return value


def above_zero(value: float | None) -> float | None:
    """Check an option that must be more than 0; raises typer.BadParameter."""
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0.")
    return finite(value)


def times(within: str | None, max_wait: str | None) -> Times:
    """Read `--within` and `--max-wait`; raises ConfigError for what is no time."""
    within_s, max_wait_s = (config.parse_seconds(text) if text is not None else None for text in (within, max_wait))
    return Times(max_wait_s, within_s)
