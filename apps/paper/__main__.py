"""Draws the paper's figures from rows of `coe-bench`, from sweeps in virtual time, and from runs on this machine."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from coe import config
from coe.cli import json_output
from coe.cli.common import application, err, out, run
from coe.cli.console import Progress
from coe.cli.options import WORK, JsonOption, SeedOption, WorkOption, words_of
from coe.errors import ConfigError
from coe.inspector.line_config import AskedSettings, LineConfig
from coe.lab.cli import bench_out
from coe.lab.cli.bench_sim import workloads_of
from coe.lab.cli.bench_source import synthetic_experts
from coe.scheduler.strategies import strategy as named_strategy
from coe.sim import preset
from coe.sim.machine import Machine
from coe.sim.workload import TAILS, TASKS
from coe.trials.rows import Heading, Row

if TYPE_CHECKING:
    from coe.trials.engine_run import MeasuredRun

app = application("Draw the figures of the CoServe paper, and repeat runs without scheduling (figure 19).")
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the pictures.")]
OUT = Path("out")


@app.command()
def figures(
    rows: Annotated[list[Path], typer.Argument(help="Files that coe-bench sim or run wrote with --json.")],
    to: OutOption = OUT,
) -> None:
    """Draw figures 13 to 16 from rows: throughput and switches by task and strategy, and as optimizations are added.

    Example: python -m apps.paper figures rows.json --out out/
    """
    from apps.paper.figures import draw

    _report(draw([row for path in rows for row in rows_at(path)], [], [], to, command=_command()))


@app.command()
def sweeps(
    task: Annotated[str, typer.Option(metavar="LIST|all|TRACE", help=f"{', '.join(TASKS)}, or a trace file.")] = "A1",
    tail: Annotated[str | None, typer.Option(metavar="LIST", help=f"How counts fall: {', '.join(TAILS)}.")] = None,
    device: Annotated[
        str,
        typer.Option(metavar="LIST|all|FILE", help=f"{', '.join(preset.names())}, or the YAML file of another box."),
    ] = "numa-rtx3080ti",
    seed: SeedOption = 0,
    to: OutOption = OUT,
) -> None:
    """Draw figures 17 and 18: throughput by executors and by loaded experts, for the first task of each board.

    Example: python -m apps.paper sweeps --task all --tail narrow --device all --out out/
    """
    from apps.paper.figures import draw
    from apps.paper.sweeps import executors, loaded_experts

    machines = [Machine(name) for name in (preset.names() if device.strip() == "all" else words_of(device))]
    first_of_board = {workload.board.board: workload for workload in reversed(workloads_of(task, None, tail, seed))}
    executor_points, loaded_points = [], []
    with Progress(console=err, transient=True) as bar:
        bar_task = bar.add_task("sweeping executors and memory", total=None)
        for machine in machines:
            for workload in reversed(first_of_board.values()):
                executor_points += executors(machine, workload, seed=seed, tick=lambda: bar.advance(bar_task))
                loaded_points += loaded_experts(machine, workload, seed=seed, tick=lambda: bar.advance(bar_task))
    _report(draw([], executor_points, loaded_points, to, command=_command()))


@app.command()
def scheduling(  # noqa: PLR0913
    strategy: Annotated[str, typer.Option(metavar="LIST|all", help="One or more, separated by commas.")] = "coserve",
    experts: Annotated[int, typer.Option(min=1, max=config.MAX_COUNT, help="The number of synthetic experts.")] = 24,
    kind: Annotated[str, typer.Option(help="The kind of the experts.")] = "resnet101",
    input_size: Annotated[
        int, typer.Option("--input", min=config.MIN_INPUT, max=config.MAX_INPUT, help="Input size in pixels.")
    ] = 224,
    requests: Annotated[int, typer.Option(min=1, max=config.MAX_COUNT, help="The number of images.")] = 400,
    executors: Annotated[str, typer.Option(help="Parallel workers by device, as cpu=2.")] = config.EXECUTORS,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory budget, as 1.5GiB. Default: so much that a quarter of the experts fit, and the activations."
        ),
    ] = None,
    disk_bandwidth: Annotated[
        str | None, typer.Option(help="Load no faster than a disk of this bandwidth, as 530MB/s.")
    ] = None,
    work: WorkOption = WORK,
    seed: SeedOption = 0,
    json_to: JsonOption = None,
) -> None:
    """Run strategies on this machine, then repeat the commands of each run without scheduling: figure 19.

    Example: python -m apps.paper scheduling --strategy samba,coserve --experts 40 --kind resnet18
    """
    from apps.paper.prescheduled import repeating
    from coe.trials.engine_run import all_at_once, measured_run
    from coe.trials.synthetic import quarter_budget, synthetic_pictures

    names = bench_out.strategies(strategy)
    json_output.check_json(json_to)
    board, store = synthetic_experts(work, kind, experts, input_size, seed, None, [], ())
    pictures = synthetic_pictures(board, requests, seed)
    rows: list[Row] = []
    sentences = []
    with Progress(console=err, transient=True) as bar:
        bar_task = bar.add_task("running", total=2 * len(names) * len(pictures))
        asked = AskedSettings.parsed(memory=memory or quarter_budget(board, store), executors=executors, profile=None)
        line_config = LineConfig(
            board=board,
            store=store,
            asked=asked,
            inbox=all_at_once(pictures),
            disk_bytes_per_s=config.parse_bandwidth(disk_bandwidth) if disk_bandwidth else None,
        )
        for name in names:
            scheduled = replace(line_config, strategy=named_strategy(name))
            run_it = partial(
                measured_run,
                pictures=pictures,
                heading=Heading(f"{experts} x {kind}", "iid", name),
                tick=lambda: bar.advance(bar_task),
            )
            measured = run_it(scheduled)
            repeated = run_it(replace(scheduled, costs=measured.costs, make_decider=repeating(measured.trace)))
            rows += [measured.row, replace(repeated.row, strategy=f"{name} (prescheduled)")]
            sentences.append(cost_of_scheduling(measured, repeated))
    bench_out.show(rows, json_to)
    for sentence in sentences:
        (err if json_to == json_output.STANDARD_OUTPUT else out).print(sentence, soft_wrap=True)


def rows_at(path: Path) -> list[Row]:
    """Read rows that `coe-bench` wrote as JSON, without the figures of the machine; raises ConfigError."""
    try:
        return TypeAdapter(list[Row]).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        raise ConfigError(
            f"{path} does not hold the rows of a benchmark ({error.errors()[0]['msg']}); write them with "
            f"coe-bench sim --json {path}"
        ) from None


def cost_of_scheduling(measured: MeasuredRun, repeated: MeasuredRun) -> str:
    """Return a sentence on the cost of scheduling, from a run and the same run without scheduling."""
    gain = repeated.row.images_per_s / measured.row.images_per_s - 1 if measured.row.images_per_s else 0.0
    inference_ms = 1e3 * measured.metrics.run_s / max(1, measured.metrics.images)
    return (
        f"{measured.row.strategy}: {measured.row.images_per_s:.2f} images/s with scheduling and "
        f"{repeated.row.images_per_s:.2f} without ({gain:+.1%}); an image takes "
        f"{measured.row.scheduling_us_per_request:.0f} µs of scheduling and {inference_ms:.1f} ms of inference"
    )


def _command() -> str:
    return " ".join(["python -m apps.paper", *(shlex.quote(word) for word in sys.argv[1:])])


def _report(paths: list[Path]) -> None:
    for path in paths:
        err.print(f"drew {path}", soft_wrap=True)


def main() -> None:
    """Run a command."""
    run(app)


if __name__ == "__main__":
    main()
