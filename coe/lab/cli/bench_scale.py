"""`coe-bench scale`: measures the time of a decision with thousands of experts and very many waiting images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from coe import config
from coe.cli.common import err, out, wide
from coe.cli.console import Progress
from coe.cli.options import finite
from coe.cli.tool_options import words_of
from coe.errors import ConfigError
from coe.lab.cli.bench_out import strategies
from coe.lab.rows import figures_table
from coe.scheduler.strategies import present_name

if TYPE_CHECKING:
    from coe.lab.cluster_scale import ClusterScale
    from coe.lab.scale import Scale

Point = TypeVar("Point", "Scale", "ClusterScale")
Columns = Mapping[str, Callable[[Point], str]]
"""For each heading of a table, the text of a point."""


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
    boxes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Measure the head of a cluster of so many boxes instead, which answer in fixed times.",
            show_default="one box",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Measure how long this machine takes to decide; no model runs, and a tenth of the experts fits into memory.

    "deciding" is the mean time to answer an event. It should hardly grow with experts or with waiting images.

    With --boxes, "deciding" is the head's processor time for an image: where each stage goes, and what follows.

    Example: coe-bench scale --experts 10000 --requests 1000000 --every 4
    """
    sizes = [(e, r) for e in _numbers("--experts", experts) for r in _numbers("--requests", requests)]
    if boxes is not None:
        _clusters(boxes, sizes, every_ms, strategy, as_json)
        return
    from coe.lab.scale import measure

    runs = [
        partial(measure, e, r, every_s=every_ms / 1e3, name=name) for name in strategies(strategy) for e, r in sizes
    ]
    columns: Columns[Scale] = {
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
    _measure(runs, columns, as_json)


def _clusters(boxes: int, sizes: list[tuple[int, int]], every_ms: float, strategy: str, as_json: bool) -> None:
    from coe.lab.cluster_scale import measure

    if not every_ms:
        raise ConfigError("--boxes needs a pace, because images that all come at once only wait; add --every, as 0.05")
    if present_name(strategy) != config.STRATEGY:
        raise ConfigError("--boxes measures the head, which has no strategy; leave out --strategy")
    runs = [partial(measure, experts, boxes, images, every_ms / 1e3) for experts, images in sizes]
    columns: Columns[ClusterScale] = {
        "experts": lambda point: f"{point.experts:,}",
        "boxes": lambda point: f"{point.boxes:,}",
        "images": lambda point: f"{point.images:,}",
        "images/s": lambda point: f"{point.images_per_s:,.0f}",
        "placement": lambda point: f"{point.place_s:.1f} s",
        "decisions/s": lambda point: f"{point.decisions_per_s:,.0f}",
        "deciding": lambda point: f"{point.us_per_image:.0f} µs",
        "most under way": lambda point: f"{point.most_under_way:,}",
        "busiest": lambda point: f"{point.busiest:.2f}",
        "head": lambda point: config.format_bytes(point.head_bytes),
        "grown by": lambda point: config.format_bytes(point.growth_bytes),
        "memory": lambda point: config.format_bytes(point.peak_rss_bytes),
    }
    _measure(runs, columns, as_json)


def _measure(runs: Sequence[Callable[[], Point]], columns: Columns[Point], as_json: bool) -> None:
    """Make all runs, and print a row for each, or JSON."""
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
