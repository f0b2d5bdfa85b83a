"""`coe-bench scale`: measures the time of a decision with thousands of experts and very many waiting images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.cli.common import err, out, wide
from coe.cli.console import Progress
from coe.cli.options import finite
from coe.cli.tool_options import words_of
from coe.errors import ConfigError
from coe.lab.cli.bench_out import strategies
from coe.lab.rows import figures_table

if TYPE_CHECKING:
    from coe.lab.scale import Scale


def scale(
    experts: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of experts on the board, separated by commas.")
    ] = "300,3000,10000",
    requests: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of images that arrive at once and wait, separated by commas.")
    ] = "1000,10000,100000",
    every_ms: Annotated[
        float,
        typer.Option(
            "--every",
            min=0,
            max=1e6,
            callback=finite,
            metavar="MS",
            help="Let an image arrive every so many milliseconds instead of all at once.",
        ),
    ] = 0.0,
    strategy: Annotated[
        str, typer.Option(metavar="LIST|all", help="One or more, separated by commas.")
    ] = config.STRATEGY,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Measure how long this machine takes to decide; no model runs, and a tenth of the experts fits into memory.

    "deciding" is the mean time to answer an event. It should hardly grow with experts or with waiting images.

    Example: coe-bench scale --experts 10000 --requests 1000000 --every 4
    """
    sizes = [(e, r) for e in _numbers("--experts", experts) for r in _numbers("--requests", requests)]
    from coe.lab.scale import measure

    runs = [
        partial(measure, e, r, every_s=every_ms / 1e3, name=name) for name in strategies(strategy) for e, r in sizes
    ]
    columns: dict[str, Callable[[Scale], str]] = {
        "strategy": lambda point: point.strategy,
        "experts": lambda point: f"{point.experts:,}",
        "images": lambda point: f"{point.requests:,}",
        "most waiting": lambda point: f"{point.most_waiting:,}",
        "switches": lambda point: f"{point.switches:,}",
        "deciding": lambda point: f"{point.us_per_event:.0f} µs",
        "an image": lambda point: f"{point.us_per_request:.0f} µs",
        "a stage": lambda point: f"{point.us_per_stage:.0f} µs",
        "run": lambda point: f"{point.wall_s:.1f} s",
        "memory": lambda point: config.format_bytes(point.peak_rss_bytes),
    }
    with Progress(console=err, transient=True) as bar:
        points = [run() for run in bar.track(runs, description="deciding")]
    if as_json:
        sys.stdout.write(json.dumps([asdict(point) for point in points], indent=2) + "\n")
        return
    # Outside a terminal each point has one line, for grep and diff.
    wide(out).print(figures_table(columns, points, words=("strategy",)))


def _numbers(option: str, text: str) -> list[int]:
    numbers = words_of(text)
    for number in numbers:
        if not (number.isdecimal() and len(number) <= 9) or not 40 <= int(number) <= 10_000_000:
            raise ConfigError(f"{option}: '{number}' is not a number between 40 and 10,000,000")
    return [int(number) for number in numbers]
