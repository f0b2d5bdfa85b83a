"""`coe-bench`: how fast, how often it switches, and what memory it takes, measured on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from coe import config, images, rules
from coe.cli.common import application, err, out, run
from coe.errors import ConfigError
from coe.policies.strategies import strategy as named_strategy
from coe.store import Store

if TYPE_CHECKING:
    from coe.benchmark import Row

app = application("Measure the engine on this machine, on real weights files.")


@app.callback()
def about() -> None:
    """Measure the engine on this machine, on real weights files."""


@app.command("run")
def run_(
    board: Annotated[str | None, typer.Option(help="A board with trained experts, inspecting --images.")] = None,
    images_at: Annotated[Path | None, typer.Option("--images", help="Images for --board.")] = None,
    experts: Annotated[int, typer.Option(min=1, help="Without --board: how many synthetic experts.")] = 24,
    kind: Annotated[str, typer.Option(help="Without --board: of which kind.")] = "resnet101",
    input_size: Annotated[int, typer.Option("--input", help="Without --board: input size in pixels.")] = 224,
    requests: Annotated[int, typer.Option(min=1, help="How many images; those of --images are repeated.")] = 400,
    strategy: Annotated[str, typer.Option(help="One or more, separated by commas.")] = "coserve",
    executors: Annotated[str, typer.Option(help="Workers by device, as cpu=2.")] = config.EXECUTORS,
    memory: Annotated[
        str | None, typer.Option(help="Budget. Default: three quarters of it hold a quarter of the experts.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of the experts for --board.")] = None,
    work: Annotated[Path, typer.Option(help="Folder for synthetic weights; kept for the next time.")] = Path(
        "build/bench"
    ),
    seed: int = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON on standard output.")] = False,
) -> None:
    """Run strategies one after another over the same images and show a row for each.

    switch / read is the mean time of a switch over that of a plain read of the same bytes in the same run.

    Example: coe-bench run --experts 24 --kind resnet101 --requests 400
    """
    from coe import benchmark
    from coe.inspector import Picture

    names = [named_strategy(name.strip()).name for name in strategy.split(",")]
    if board is not None:
        if images_at is None:
            raise ConfigError("--board needs --images")
        found = rules.load(board)
        shelf, path = Store(store), found.path
        items = [item for item in images.find(images_at, found.components)[0] if item.error is None]
        if not items:
            raise ConfigError(f"{images_at} holds no image of a component of board '{board}'")
        chosen = [items[index % len(items)] for index in range(requests)]
        pictures = [Picture(item.path, item.component, item.serial, item.refdes, item.name) for item in chosen]
    else:
        err.print(f"making {experts} synthetic {kind} experts in {work} (kept for the next time)", soft_wrap=True)
        path, shelf = benchmark.synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=seed)
        pictures = benchmark.synthetic_pictures(path, requests, seed)
    budget = config.parse_bytes(memory) if memory else benchmark.quarter_budget(path, shelf)
    rows = []
    with Progress(console=err, transient=True) as bar:
        for name in names:
            task = bar.add_task(name, total=len(pictures))
            rows.append(
                benchmark.measured_run(
                    path,
                    shelf,
                    pictures,
                    memory_bytes=budget,
                    executors=executors,
                    strategy=name,
                    tick=lambda task=task: bar.advance(task),  # type: ignore[misc]
                )
            )
    if as_json:
        sys.stdout.write(json.dumps([row.to_json() for row in rows], indent=2) + "\n")
        return
    table = Table("", *(row.strategy for row in rows), box=None, pad_edge=False, header_style="bold")
    for name, cells in _FIGURES.items():
        table.add_row(name, *(cells(row) for row in rows))
    out.print(table)


_FIGURES: dict[str, Callable[[Row], str]] = {
    "images/s": lambda row: f"{row.images_per_s:.2f}",
    "not inspected": lambda row: str(row.errors),
    "switches": lambda row: str(row.switches),
    "hit ratio": lambda row: f"{row.hit_ratio:.1%}",
    "mean switch": lambda row: f"{row.switch_ms:.1f} ms",
    "plain read": lambda row: f"{row.read_ms:.1f} ms",
    "switch / read": lambda row: f"{row.switch_ratio:.2f}",
    "time deciding": lambda row: f"{row.control_share:.3%}",
    "peak reserved": lambda row: config.format_bytes(row.peak_reserved_bytes),
    "budget": lambda row: config.format_bytes(row.budget_bytes),
    "peak RSS": lambda row: config.format_bytes(row.peak_rss_bytes),
    "RSS growth": lambda row: config.format_bytes(row.rss_growth_bytes),
}


def main() -> None:
    """Run the command."""
    run(app)
