"""`coe-bench serve`: measures a running service against its goals."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coe import config
from coe.cli.common import err, out, wide
from coe.cli.options import AllowKindOption, StoreOption, finite, found_here
from coe.cli.tool_options import STANDARD_OUTPUT, JsonOption, check_json, words_of, write_json
from coe.errors import ConfigError, did_you_mean
from coe.system import usable_cores

if TYPE_CHECKING:
    from coe.serve.benchmark.benchmark_figures import Measured, Part

PARTS = "speed,decisions,intake,pages,clients,pace"
BOARD, MEMORY, IMAGES, KINDS = "first_look", "25MB", Path("build/first-look/images"), ["apps.demo"]


def serve(  # noqa: PLR0913
    parts: Annotated[str, typer.Option(metavar="LIST", help="The parts to measure, separated by commas.")] = PARTS,
    board: Annotated[str, typer.Option(help="A board whose experts are in the store.")] = BOARD,
    images: Annotated[Path, typer.Option(help="Pictures of the board's components.")] = IMAGES,
    memory: Annotated[str, typer.Option(help="Memory for experts and activations, of the service and the engine.")] = (
        MEMORY
    ),
    history: Annotated[
        int | None, typer.Option(min=1, max=config.MAX_COUNT, help="Boards in the history. Default: 100,000.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Clients that listen to events. Default: 200.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=config.MAX_COUNT, help="Rounds of service and engine. Default: 5.")
    ] = None,
    boards_per_hour: Annotated[
        float,
        typer.Option("--boards-per-hour", min=1, max=1e6, callback=finite, help="The pace of parts pace and soak."),
    ] = 600.0,
    components: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Components of a board of part pace. Default: 500.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, max=1e6, callback=finite, help="How long part pace takes. Default: 180.")
    ] = None,
    soak: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            max=1e7,
            callback=finite,
            help="Measure the part soak alone: boards come for so long, people verify and read, and sizes are sampled.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="So little of each part that it takes seconds; figures mean nothing.")
    ] = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
    work: Annotated[
        Path | None, typer.Option(help="Keep the service in this new folder. Default: a folder that is removed.")
    ] = None,
    json_to: JsonOption = None,
) -> None:
    """Measure a running service: its own processes, real HTTP, real weights, a history of boards.

    speed: images a second beside the engine of coe-inspect, in turn. decisions: from the last finding of a board to its
    decision on the disk. intake: a picture of 5 MB. pages: every page. clients: events at many clients. pace: boards
    with many components, on a device that takes no time. A figure that misses its goal is marked, and the exit status
    is 0 in any case: judge figures by the machine that made them.

    Example: coe-bench serve --parts pages,intake --history 100000
    """
    from coe.serve.benchmark import benchmark_plan
    from coe.serve.benchmark.steady_pace import BoardPace
    from coe.serve.creation import Wanted

    check_json(json_to)
    chosen = _parts(parts, soak)
    given = {"history": history, "clients": clients, "rounds": rounds}
    amounts = (benchmark_plan.QUICK if quick else {}) | {name: number for name, number in given.items() if number}
    if quick:
        pace = BoardPace(36_000, components or 4, 30.0, soak or seconds or 0.5)
    else:
        pace = BoardPace(boards_per_hour, components or (40 if soak else 500), 6.0, soak or seconds or 180.0)
    wanted = Wanted(board, store or Path(config.STORE_FOLDER), memory, tuple(allow_kind or found_here(KINDS) or ()))
    with _folder(work) as folder:
        plan = benchmark_plan.ServiceBenchPlan(wanted, images, folder, chosen, pace, **amounts)
        measured = list(plan.run(lambda sentence: err.print(sentence, style="dim")))
    screen = err if json_to == STANDARD_OUTPUT else out
    wide(screen).print(_table(measured))
    machine = f"{usable_cores()} cores, {platform.machine()}, Python {platform.python_version()}, load {_load()}"
    screen.print(f"machine: {machine}")
    rows = [{**asdict(figure), "is_met": figure.is_met} for figure in measured]
    write_json(json.dumps({"machine": machine, "figures": rows}, indent=2) + "\n", json_to)


def _parts(text: str, soak: float | None) -> list[Part]:
    from coe.serve.benchmark.benchmark_figures import Part

    if soak is not None:
        if text != PARTS:
            raise ConfigError("--soak is a part by itself; leave --parts out")
        return [Part.SOAK]
    names = words_of(text)
    known = [part.value for part in Part if part is not Part.SOAK]
    for name in names:
        if name not in known:
            raise ConfigError(f"--parts: there is no '{name}'{did_you_mean(name, known)}")
    return [Part(name) for name in names]


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    """Give the folder of the service; raises ConfigError for one that is not new."""
    if work is None:
        with TemporaryDirectory(prefix="coe-bench-serve-") as folder:
            yield Path(folder)
        return
    if work.exists() and any(work.iterdir()):
        raise ConfigError(f"--work: {work} is not empty; name a new folder")
    work.mkdir(parents=True, exist_ok=True)
    yield work


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _table(measured: list[Measured]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("part", "figure", "value", "goal", "", "of", "beside it"):
        table.add_column(heading, justify="right" if heading in ("value", "goal", "of") else "left")
    for figure in measured:
        bound = figure.goal and ("at least" if figure.goal.at_least else "at most")
        goal = f"{bound} {figure.goal.value:,.4g}" if figure.goal else ""
        verdict = {None: "", True: "met", False: "MISSED"}[figure.is_met]
        value = f"{figure.value:,.4g} {figure.unit}".rstrip()
        table.add_row(figure.part.value, figure.name, value, goal, verdict, f"{figure.samples:,}", figure.note)
    return table
