"""`coe-bench run`: strategies one after another on this machine, on real weights files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.board import rules
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.options import WithinOption, seconds, takes_line_options
from coe.cli.tool_options import WORK, JsonOption, SeedOption, WorkOption, check_json, words_of
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector.line_arguments import LineArguments
from coe.inspector.line_options import LineOptions
from coe.inspector.option import Door
from coe.inspector.precision import check_precision
from coe.lab.cli import bench_out
from coe.lab.cli.bench_circumstances import SettlingOption
from coe.lab.cli.bench_runs import BenchRuns
from coe.lab.cli.bench_source import check_host_only, check_source, given, synthetic_experts, variants
from coe.lab.cli.bench_ways import CONFIGURED, EAGER, PAPER_DEFAULT, PROFILED, configurations, strategy_of
from coe.lab.rows import Row
from coe.lab.time_limits import Times
from coe.lab.workloads import trace_file
from coe.lab.workloads.picture_forms import PictureForm
from coe.scheduler.strategies import strategy as named_strategy

if TYPE_CHECKING:
    from coe.lab.measured_run import MeasuredRun


@takes_line_options(Door.RUN)
def run(  # noqa: PLR0913
    context: typer.Context,
    board: Annotated[
        str | None,
        typer.Option(help="A board whose experts are in the store. Default: a synthetic board with random weights."),
    ] = None,
    images_at: Annotated[
        Path | None,
        typer.Option("--images", help="Images of the board's components, for --board. Default: pictures of noise."),
    ] = None,
    experts: Annotated[
        int, typer.Option(min=1, max=config.MAX_COUNT, help="Without --board: the number of synthetic experts.")
    ] = 24,
    kind: Annotated[str, typer.Option(help="Without --board: the kind of the experts.")] = "resnet101",
    files: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=config.MAX_COUNT,
            help="Without --board: the number of weights files that experts share. Default: a file for each expert.",
        ),
    ] = None,
    input_size: Annotated[
        int,
        typer.Option(
            "--input", min=config.MIN_INPUT, max=config.MAX_INPUT, help="Without --board: input size in pixels."
        ),
    ] = 224,
    requests: Annotated[
        int,
        typer.Option(
            min=1, max=config.MAX_COUNT, help="The number of images; those of --images are repeated as needed."
        ),
    ] = 400,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="LIST|all",
            help=f"One or more, separated by commas. {PROFILED} runs the configuration that coe-profile chose for the "
            f"board, {PAPER_DEFAULT} the paper's default. A name with {EAGER} at its end, as samba{EAGER}, loads "
            "and runs experts as a plain PyTorch program does, for comparison.",
        ),
    ] = config.STRATEGY,
    precision: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="One or more of fp32, mixed (docs/precision.md); labels are compared with those of fp32.",
        ),
    ] = config.PRECISION,
    *,
    line: LineArguments,
    label_floor: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Use a cheaper precision for an expert only if at least this share of its labels agrees with fp32.",
        ),
    ] = config.LABEL_FLOOR,
    profile_at: Annotated[
        Path | None,
        typer.Option("--profile", help=f"The profile for {PROFILED}. Default: the file that coe-profile writes."),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=1,
            max=config.MAX_COUNT,
            help="Run each strategy so many times, every second round backwards; its run of median speed counts.",
        ),
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            help="Images a second, each at its time, even if the line falls behind. Default: all images at once.",
        ),
    ] = None,
    settling: SettlingOption = 0,
    within: WithinOption = None,
    form: Annotated[
        PictureForm | None,
        typer.Option(
            help="Hand pictures in as arrays, or as JPEGs in memory. Default: paths of --images, else arrays of noise."
        ),
    ] = None,
    host_only: Annotated[
        bool,
        typer.Option(
            "--host-only",
            help="Measure all work but the devices': networks answer from memory, and loads take no time.",
        ),
    ] = False,
    with_prediction: Annotated[
        bool,
        typer.Option(
            "--predict", help="Also simulate each run with the same costs, to see how well the simulator predicts it."
        ),
    ] = False,
    save_task: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the arrivals and findings as a trace file for coe-bench sim --task."),
    ] = None,
    work: WorkOption = WORK,
    seed: SeedOption = 0,
    json_to: JsonOption = None,
) -> None:
    """Run strategies one after another over the same images and show a row for each.

    A run is measured from its first image; the pools are filled before. A switch is a load that a waiting image needs,
    because its expert is not in memory; "ratio" is its mean time over that of a plain read of the same bytes.
    "peak RSS" is the peak memory of this process, with its growth in this run in brackets.

    Example: coe-bench run --strategy samba,coserve,late-binding --experts 40 --kind resnet18
    """
    from coe.inspector.experiment import Experiment
    from coe.inspector.line_devices import free_cores
    from coe.lab import measured_run as engine
    from coe.lab.workloads import synthetic
    from coe.profiler.remembered_device import RememberedOutputs

    names = bench_out.strategies(strategy, also=CONFIGURED, eager=True)
    allowed = Times(line.pop("max_wait_s", None), seconds(within))
    allowed = bench_out.heeded(allowed, [named_strategy(strategy_of(name)) for name in names])
    asked = LineOptions.of(board or kind, **line)
    executors = asked.executors or config.EXECUTORS
    check_json(json_to)
    check_source(context, board, images_at, names)
    precisions = _precisions(precision, label_floor, names)
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {rate:g} is not a number of images a second; write it as 250")
    if settling >= requests:
        raise ConfigError(
            f"--settling {settling} leaves out all {requests} images; leave out fewer, or give more --requests"
        )
    check_host_only(host_only, names, executors, with_prediction=with_prediction)
    if board is not None:
        path, shelf, pictures = given(board, images_at, asked.store, requests, seed, form)
        task, order = rules.load(path).board, "given" if images_at else "iid"
    else:
        wanted = variants(executors, precisions)
        path, shelf = synthetic_experts(work, kind, experts, input_size, seed, files, wanted, asked.allow_kinds)
        pictures = synthetic.synthetic_pictures(path, requests, seed, form or PictureForm.ARRAY)
        task, order = f"{experts} x {kind}", "iid"
    budget, configured = configurations(names, profile_at, path, shelf, asked.memory)
    # coe-profile chooses for a line as in coe-inspect, where images have a part of the memory.
    inbox = LineArguments() if configured else engine.all_at_once(pictures)
    line_options = LineOptions.of(path, **line).but(store=shelf, memory=budget, profile=None).but(**inbox)
    remembered = RememberedOutputs() if host_only else None
    ways = [(name, p) for p in precisions for name in names if p == FULL or not name.endswith(EAGER)]
    # Decided once for all runs: they are compared with equal threads.
    experiment = Experiment(label_floor=label_floor, free_cores=free_cores())
    line_options = line_options.but(experiment=experiment)
    comparison = BenchRuns(line_options, pictures, task, order, configured, rate, allowed, remembered, settling)
    compared = _compare(comparison, ways, repeat, with_prediction=with_prediction)
    bench_out.show(compared.rows, json_to)
    if save_task is not None:
        trace_file.write(save_task, engine.workload_of(compared.last))
    for sentence in compared.sentences:
        bench_out.beside(json_to).print(sentence)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The rows and sentences of the runs that count, and that run of the last way."""

    rows: list[Row]
    sentences: list[str]
    last: MeasuredRun


def _compare(
    comparison: BenchRuns, ways: Sequence[tuple[str, str]], repeat: int, *, with_prediction: bool
) -> _Compared:
    """Run each way, a name and a precision, `repeat` times there and back; the run in the middle counts."""
    from coe.lab import measured_run as engine
    from coe.lab import sentences
    from coe.profiler.confirm import in_turn

    rows: list[Row] = []
    with Progress(console=err, transient=True) as bar:

        def measure(name: str, precision: str) -> MeasuredRun:
            label = name if precision == FULL else f"{name} {precision}"
            task = bar.add_task(label, total=len(comparison.pictures))
            return comparison.measure(name, precision, tick=lambda: bar.advance(task))

        runs_by_way = in_turn([partial(measure, *way) for way in ways], again=lambda rounds: rounds < repeat)
        chosen = {way: sentences.middle(runs) for way, runs in zip(ways, runs_by_way, strict=True)}
        for measured in chosen.values():
            rows.append(measured.row)
            if with_prediction:
                rows.append(engine.predict(measured, comparison.times, comparison.settling))
    texts = sentences.of_rounds(dict(zip(ways, runs_by_way, strict=True)))
    texts += sentences.of_precisions(chosen) + sentences.of_ways(chosen, EAGER) + sentences.of_paces(chosen)
    return _Compared(rows, texts, measured)


def _precisions(text: str, floor: float, names: Sequence[str]) -> list[str]:
    precisions = list(dict.fromkeys(words_of(text)))
    for name in precisions:
        check_precision(name, floor)
    if (eager := [name for name in names if name.endswith(EAGER)]) and FULL not in precisions:
        raise ConfigError(f"'{eager[0]}' runs in {FULL} alone; add it: --precision {','.join([FULL, *precisions])}")
    return precisions
