"""`coe-bench run`: strategies one after another on this machine, on real weights files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.bench.configurations import in_turn
from coe.board import rules
from coe.cli import bench_out
from coe.cli.bench_runs import Comparison
from coe.cli.bench_source import check_source, given, synthetic_experts, variants
from coe.cli.bench_ways import CASUAL, CONFIGURED, PROFILED, USUAL, settled_by, strategy_of
from coe.cli.common import err, out
from coe.cli.console import Progress
from coe.cli.options import (
    WORK,
    AllowKindOption,
    DeviceMemoryOption,
    HostMemoryOption,
    JsonOption,
    LabelFloorOption,
    MaxWaitOption,
    SeedOption,
    StoreOption,
    WithinOption,
    WorkOption,
)
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector.precision import check_precision
from coe.sim import trace_file
from coe.store import dotted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coe.bench.engine import MeasuredRun
    from coe.bench.rows import Row


def run(  # noqa: PLR0913
    context: typer.Context,
    board: Annotated[
        str | None, typer.Option(help="A board whose experts are in the store; else synthetic experts are made.")
    ] = None,
    images_at: Annotated[
        Path | None,
        typer.Option("--images", help="Images for --board. Default: pictures of noise, by the counts of components."),
    ] = None,
    experts: Annotated[
        int, typer.Option(min=1, max=config.MAX_COUNT, help="Without --board: how many synthetic experts.")
    ] = 24,
    kind: Annotated[str, typer.Option(help="Without --board: of which kind.")] = "resnet101",
    files: Annotated[
        int | None,
        typer.Option(
            min=1, max=config.MAX_COUNT, help="Without --board: how many files the experts share. Default: one each."
        ),
    ] = None,
    input_size: Annotated[
        int,
        typer.Option(
            "--input",
            min=config.MIN_INPUT,
            max=config.MAX_INPUT,
            help="Without --board: input size in pixels.",
        ),
    ] = 224,
    requests: Annotated[
        int, typer.Option(min=1, max=config.MAX_COUNT, help="How many images; those of --images are repeated.")
    ] = 400,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="LIST|all",
            help=f"One or more, separated by commas. Also {PROFILED}, with what coe-profile chose for the board, "
            f"and {CASUAL}, with the paper's casual configuration; with {USUAL} behind its name, as in samba{USUAL}, a "
            "strategy runs with experts loaded and run the usual way of PyTorch, to compare with.",
        ),
    ] = config.STRATEGY,
    precision: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="One or more of fp32, half, mixed (docs/precision.md); all are compared with fp32."
        ),
    ] = config.PRECISION,
    label_floor: LabelFloorOption = config.LABEL_FLOOR,
    executors: Annotated[str, typer.Option(help="Workers by device, as cpu=2 or cuda=2,cpu=1.")] = config.EXECUTORS,
    memory: Annotated[
        str | None, typer.Option(help="Budget. Default: three quarters of it hold a quarter of the experts.")
    ] = None,
    device_memory: DeviceMemoryOption = None,
    host_memory: HostMemoryOption = None,
    profile_at: Annotated[
        Path | None, typer.Option("--profile", help=f"For {PROFILED}. Default: where coe-profile puts it.")
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(min=1, max=config.MAX_COUNT, help="Run all of them so often, there and back; the best counts."),
    ] = 1,
    disk_bandwidth: Annotated[
        str | None,
        typer.Option(help="Load no faster than such a disk, as 530MB/s, so that cached files do not flatter."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Images a second, each on time whatever the line does.", metavar="RATE")
    ] = None,
    backlog: Annotated[bool, typer.Option("--backlog", help="All images at once (the default).")] = False,
    within: WithinOption = None,
    max_wait: MaxWaitOption = None,
    with_prediction: Annotated[
        bool, typer.Option("--predict", help="Simulate each run with the same costs: how well does the simulator do?")
    ] = False,
    save_task: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what came and was found as a trace file for coe-bench sim --task."),
    ] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
    work: WorkOption = WORK,
    seed: SeedOption = 0,
    json_to: JsonOption = None,
) -> None:
    """Run strategies one after another over the same images and show a row for each.

    A run is measured from the first image, when the pools hold what they begin with. "ratio" is the mean time of a
    switch over that of a plain read of the same bytes in the same run; "peak RSS" is that of this whole process, in
    brackets what it grew by in this run.

    Example: coe-bench run --strategy samba,coserve,line --experts 40 --kind resnet18
    """
    from coe.bench import engine, prediction, synthetic
    from coe.inspector.line_config import AskedSettings, Inbox, LineConfig

    names = bench_out.strategies(strategy, also=CONFIGURED, usual=True)
    allowed = bench_out.times(within, max_wait, [strategy_of(name) for name in names])
    bench_out.check_json(json_to)
    check_source(context, board, images_at, names)
    precisions = _precisions(precision, label_floor, names)
    _check_rate(rate, backlog)
    speed = config.parse_bandwidth(disk_bandwidth) if disk_bandwidth else None
    if board is not None:
        path, shelf, pictures = given(board, images_at, store, requests, seed)
        task, order = rules.load(path).board, "given" if images_at else "iid"
    else:
        path, shelf = synthetic_experts(work, kind, experts, input_size, seed, files, variants(executors, precisions))
        pictures = synthetic.synthetic_pictures(path, requests, seed)
        task, order = f"{experts} x {kind}", "iid"
    budget, settled = settled_by(names, profile_at, path, shelf, config.parse_bytes(memory) if memory else None)
    line_config = LineConfig(
        board=path,
        store=shelf,
        asked=AskedSettings.parsed(
            memory=budget, executors=executors, device_memory=device_memory, host_memory=host_memory, profile=None
        ),
        label_floor=label_floor,
        # What coe-profile chose it chose for a line as in coe-inspect, whose images have a part of the memory.
        inbox=Inbox() if settled else engine.all_at_once(pictures),
        disk_bytes_per_s=speed,
        allowed_kinds=dotted.packages(allow_kind or ()),
    )
    comparison = Comparison(line_config, pictures, task, order, settled, rate, allowed)
    ways = [(name, one) for one in precisions for name in names if one == FULL or not name.endswith(USUAL)]
    compared = _compare(comparison, ways, repeat, with_prediction=with_prediction)
    bench_out.show(compared.rows, json_to)
    if save_task is not None:
        trace_file.write(save_task, prediction.workload_of(compared.last))
    for sentence in compared.sentences:
        (err if json_to == bench_out.STANDARD_OUTPUT else out).print(sentence, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The rows and sentences of all runs, and the best run of the last way."""

    rows: list[Row]
    sentences: list[str]
    last: MeasuredRun


def _compare(
    comparison: Comparison, ways: Sequence[tuple[str, str]], repeat: int, *, with_prediction: bool
) -> _Compared:
    """Run each way, a name and a precision, `repeat` times there and back, and keep the best of its runs."""
    from coe.bench import prediction, sentences

    rows: list[Row] = []
    with Progress(console=err, transient=True) as bar:

        def measure(name: str, precision: str) -> MeasuredRun:
            called = name if precision == FULL else f"{name} {precision}"
            shown = bar.add_task(called, total=len(comparison.pictures))
            return comparison.measure(name, precision, tick=lambda: bar.advance(shown))

        every = in_turn([partial(measure, *way) for way in ways], again=lambda rounds: rounds < repeat)
        best = {way: max(runs, key=lambda one: one.row.images_per_s) for way, runs in zip(ways, every, strict=True)}
        for done in best.values():
            rows.append(done.row)
            if with_prediction:
                rows.append(prediction.predict(done, comparison.times))
    said = sentences.of_precisions(best) + sentences.of_ways(best, USUAL)
    return _Compared(rows, said, done)


def _precisions(text: str, floor: float, names: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in found:
        check_precision(name, floor)
    if (usual := [name for name in names if name.endswith(USUAL)]) and FULL not in found:
        raise ConfigError(f"'{usual[0]}' runs in {FULL} alone; add it: --precision {','.join([FULL, *found])}")
    return found


def _check_rate(rate: float | None, backlog: bool) -> None:
    if rate is not None and backlog:
        raise ConfigError("--rate and --backlog exclude each other; give one of them")
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {rate:g} is no number of images a second; write it like 250")
