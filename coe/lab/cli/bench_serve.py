"""`coe-bench serve`: measures a running service against its goals."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from coe import config
from coe.cli.common import err
from coe.cli.console import table_of
from coe.cli.options import AllowKindOption, JsonOption, StoreOption, check_json, found_here, words_of
from coe.errors import ConfigError, did_you_mean
from coe.helpers.system import usable_cores
from coe.lab.cli.bench_out import beside, show_figures

PARTS = "speed,decisions,intake,pages,clients,pace"


def serve(  # noqa: PLR0913
    parts: Annotated[str, typer.Option(metavar="LIST", help="The parts to measure, separated by commas.")] = PARTS,
    board: Annotated[str, typer.Option(help="A board whose experts are in the store.")] = "first_look",
    images: Annotated[Path, typer.Option(help="Pictures of the board's components.")] = Path("build/first-look/images"),
    memory: Annotated[str, typer.Option(help="Memory for experts and activations, of service and engine.")] = "25MB",
    history: Annotated[
        int | None, typer.Option(min=1, max=config.MAX_COUNT, help="Boards in the history. Default: 100,000.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="So little of each part that it takes seconds; figures mean nothing.")
    ] = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
    json_to: JsonOption = None,
) -> None:
    """Measure a running service: its own processes, real HTTP, real weights, a history of boards.

    speed: images a second beside the engine of coe-inspect, in turn. decisions: a board accepted to decided. intake: a
    picture of 5 MB. pages: every page. clients: events at many clients. pace: 600 boards an hour of 500 components. A
    figure that misses its goal is marked, and the exit status is 0 in any case.

    Example: coe-bench serve --parts pages,intake --history 100000
    """
    from coe.lab import serve_bench
    from coe.serve.creation import Wanted

    check_json(json_to)
    chosen = words_of(parts)
    for name in chosen:
        if name not in serve_bench.PARTS:
            raise ConfigError(f"--parts: there is no '{name}'{did_you_mean(name, serve_bench.PARTS)}")
    much = serve_bench.QUICK if quick else serve_bench.Amounts()
    much = much if history is None else replace(much, history=history)
    kinds = tuple(allow_kind or found_here(["apps.demo"]) or ())
    wanted = Wanted(board, store or Path(config.STORE_FOLDER), memory, kinds)
    with TemporaryDirectory(prefix="coe-bench-serve-") as folder:
        say = lambda sentence: err.print(sentence, style="dim")  # noqa: E731
        measured = list(serve_bench.measure(wanted, images, Path(folder) / "service", chosen, much, say))
    table = table_of("part", "figure", "value", "goal", "", "of", "beside it", left=("part", "figure", "beside it"))
    for one in measured:
        goal = "" if one.goal is None else f"at {'least' if one.at_least else 'most'} {one.goal:,.4g}"
        verdict = {None: "", True: "met", False: "MISSED"}[one.is_met]
        table.add_row(one.part, one.name, f"{one.value:,.4g} {one.unit}", goal, verdict, f"{one.samples:,}", one.note)
    show_figures(table, measured, json_to)
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    machine = f"{usable_cores()} cores, {platform.machine()}, Python {platform.python_version()}, load {load}"
    beside(json_to).print(f"machine: {machine}")
