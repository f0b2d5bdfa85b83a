"""What foresight is worth on this machine: boards come one after another, slowly, with and without a parts list.

    python -m apps.trickle --work build/trickle

Each run is measured, and foretold by the simulator with the same costs and arrivals (docs/results/foresight.md). The
experts have random weights: what is loaded when does not depend on what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from coe import config
from coe.board import rules
from coe.board.parts import PlacedPart
from coe.cli.common import application, err, run
from coe.cli.console import Progress
from coe.inspector.inspector import Picture
from coe.inspector.line_config import AskedSettings, Inbox, LineConfig
from coe.lab.cli import bench_out
from coe.lab.prediction import workload_of
from coe.scheduler.strategies import strategy
from coe.sim.workload import placement
from coe.trials.engine_run import MeasuredRun, measured_run
from coe.trials.rows import Heading, Row
from coe.trials.simulated import CONTENDERS, PlannedBox, run_plan
from coe.trials.synthetic import synthetic_board

app = application("Boards one after another, slowly: `line` without foresight, learning the order, and with a list.")
FORESIGHT = ("none", "learned", "parts")
PIXELS = 240


def pictures(parts: Sequence[PlacedPart], boards: int, seed: int, *, named: bool) -> list[Picture]:
    """Return noise for each part of some boards, in order; with refdes and serial if they are `named`."""
    noise = np.random.default_rng(seed).integers(0, 255, (PIXELS, PIXELS, 3), dtype=np.uint8)
    return [
        Picture(noise, part.component, f"S{board}", part.refdes) if named else Picture(noise, part.component)
        for board in range(boards)
        for part in parts
    ]


def foretold(measured: MeasuredRun, parts: Sequence[PlacedPart]) -> Row:
    """Return the row of a measured run in the simulator, with Belady's loads beside it."""
    box = PlannedBox(measured.row.device, measured.costs, measured.plan, {})
    row = run_plan(replace(workload_of(measured), parts=parts), CONTENDERS[measured.strategy], box)
    return replace(row, strategy=f"{measured.row.strategy} (predicted)")


@app.command()
def trickle(  # noqa: PLR0913
    work: Annotated[Path, typer.Option(help="Folder for experts and their board; kept for the next time.")],
    kind: Annotated[str, typer.Option(help="Kind of the experts.")] = "resnet101",
    experts: Annotated[int, typer.Option(min=2, max=1000, help="The number of experts.")] = 40,
    resident: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of experts for which there is memory.")
    ] = 10,
    input_size: Annotated[int, typer.Option("--input", min=8, max=1024, help="Input size in pixels.")] = 96,
    boards: Annotated[int, typer.Option(min=1, max=100, help="The number of boards.")] = 3,
    rate: Annotated[float, typer.Option(min=0.01, max=1000, help="Images a second.")] = 5.0,
    disk: Annotated[str, typer.Option(help="Bandwidth of the disk.")] = "530MB/s",
    threads: Annotated[
        int, typer.Option(min=1, max=config.MAX_THREADS, help="Threads of the executor; equal for all runs.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of weights and of the order of the parts.")] = 0,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the rows there, - for here.")
    ] = None,
) -> None:
    """Run the same boards without foresight, with an order that is learned, and with a parts list.

    Example: python -m apps.trickle --work build/trickle
    """
    board, store = synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=seed, files=4)
    parts = placement(rules.load(board), seed)
    size = max(store.manifest(expert.weights).bytes for expert in rules.load(board).experts.values())
    line_config = LineConfig(
        board=board,
        store=store,
        # A quarter of the memory is for activations.
        asked=AskedSettings.parsed(memory=resident * size * 4 // 3, executors="cpu=1", threads=threads, profile=None),
        strategy=strategy("line"),
        inbox=Inbox(limit_bytes=256 << 20),
        disk_bytes_per_s=config.parse_bandwidth(disk),
    )
    rows: list[Row] = []
    with Progress(console=err, transient=True) as bar:
        for foresight in FORESIGHT:
            listed = parts if foresight == "parts" else ()
            images = pictures(parts, boards, seed, named=foresight != "none")
            task = bar.add_task(foresight, total=len(images))
            measured = measured_run(
                replace(line_config, parts=listed),
                images,
                heading=Heading(f"{experts} x {kind}", "boards", foresight),
                images_per_s=rate,
                tick=lambda task=task: bar.advance(task),  # type: ignore[misc]
            )
            line_config = replace(line_config, costs=measured.costs)
            rows += [measured.row, foretold(measured, listed)]
    bench_out.show(rows, json_to)


def main() -> None:
    """Run `python -m apps.trickle`."""
    run(app)


if __name__ == "__main__":
    main()
