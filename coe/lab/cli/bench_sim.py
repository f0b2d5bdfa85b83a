"""`coe-bench sim`: compares strategies in virtual time, on a simulated box."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.options import MaxWaitOption, WithinOption, refuse, seconds, takes
from coe.cli.tool_options import JsonOption, check_json, why_not, words_of
from coe.core import FULL
from coe.errors import ConfigError
from coe.lab import preset
from coe.lab.cli import bench_boxes, bench_out
from coe.lab.cli.bench_boxes import ClusterOptions, boxes_of
from coe.lab.cli.bench_circumstances import BOARD_IMAGES, Circumstances, circumstances_of
from coe.lab.cli.bench_precisions import SimulatedRuns, precisions_of
from coe.lab.rows import Row
from coe.lab.time_limits import Times
from coe.lab.workloads.workload import TAILS, TASKS, Workload

if TYPE_CHECKING:
    from coe.lab.machine import SimulatedMachine
    from coe.lab.simulated import Contender
    from coe.lab.simulated_precision import Prepared


@takes("circumstances", circumstances_of)
@takes("several", boxes_of)
def sim(  # noqa: PLR0913
    context: typer.Context,
    task: Annotated[
        str, typer.Option(metavar="LIST|all|TRACE", help=f"{', '.join(TASKS)} (paper section 5.1), or a trace file.")
    ] = "A1",
    board: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"Images of this board, drawn by its counts, instead of --task; {BOARD_IMAGES:,} unless --images "
            "says.",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="LIST|all",
            help="iid (the default): components at random by count. boards: board after board, as a camera sees them.",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        str | None,
        typer.Option(
            metavar="LIST|all",
            help=f"How counts fall: {', '.join(TAILS)}; board (the default): as the board's file has them.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="LIST|all|FILE",
            help=f"{', '.join(preset.names())}, the YAML file of another box, or the profile of one (.json).",
        ),
    ] = "numa-rtx3080ti",
    strategy: Annotated[str, typer.Option(metavar="LIST|all", help="One or more, separated by commas.")] = "all",
    precision: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="fp32: experts as trained, with the box's figures for these. Prepared experts: blobs, all in fp32; "
            "mixed, in the variants that a line would choose.",
        ),
    ] = FULL,
    doubtful: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="The share of a lesser variant's findings that run again in fp32.", min=0, max=1
        ),
    ] = config.ESCALATED_SHARE,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm", help="Prepared experts: host memory is full at first, as in a line that has run for a while."
        ),
    ] = False,
    *,
    circumstances: Circumstances,
    within: WithinOption = None,
    max_wait: MaxWaitOption = None,
    several: ClusterOptions | None,
    seed: Annotated[
        int, typer.Option(min=0, max=config.MAX_SEED, help="Seed of the random components and labels.")
    ] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            help="Run with so many seeds, from --seed on, and show of each figure the mean, the least and the most.",
        ),
    ] = 1,
    json_to: JsonOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a timeline of all loads and batches, for ui.perfetto.dev or chrome://tracing."
        ),
    ] = None,
    save_task: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the task as a trace file for --task; only for a single task."),
    ] = None,
) -> None:
    """Run tasks in virtual time with the controller that real lines use, and show a row for each run.

    "at least" is the lower bound of the column before it: no order of the images could do better. "Belady" is the
    fewest switches if images do not overtake each other: compare with it at a trickle. Labels are drawn by
    the shares that the rules state, unless a trace has recorded findings.

    With prepared experts, host memory is empty at the beginning and filled while the disk is idle; --warm shows the
    time after that.

    With --boxes, a head sends each stage to the box that would be done with it first. "of bound" compares with one box
    that has the memory, disks and processors of all; "recovered" with a cluster that always had the boxes of the end.

    Example: coe-bench sim --board line7.yaml --device profile.json --seeds 5
    """
    from coe.lab.contenders import all_contenders, contender
    from coe.lab.profiled_machine import machine_named

    if several is None:
        refuse(context, "boards mishap network", "is for several boxes, and there is no --boxes")
    else:
        of_one = "precision doubtful foresight settling within warm cold trace save_task seeds"
        refuse(context, of_one, "is for one box, and --boxes names several")
    if seeds > 1:
        refuse(context, "trace save_task", "is of one seed")
    if board is not None:
        refuse(context, "task boards", "is not for --board, whose images are drawn by its counts", by_default=False)
    if traces := [name for name in words_of(task) if name not in (*TASKS, "all") and os.path.exists(name)]:
        refuse(context, "images every disturbed order tail", f"is for tasks, and the trace {traces[0]} has its images")
    world = SimulatedRuns(precisions_of(precision, doubtful, warm), seed)
    if warm and circumstances.cold:
        raise ConfigError("--warm fills memory before the first image, and --cold nothing; leave one of them out")
    contenders = [contender(name) for name in (all_contenders() if strategy.strip() == "all" else words_of(strategy))]
    presets = preset.names() if device.strip() == "all" else words_of(device)
    if several is not None and several.boards:
        drawn_by = "is for tasks, and --boards draws the images of all boards by their counts"
        refuse(context, "task order tail disturbed", drawn_by, by_default=False)
        workloads = [bench_boxes.workload_of(several.boards, circumstances.images, circumstances.every_s, seed)]
    else:
        workloads = circumstances.of_task(task, board, order, tail, seed)
    drawn_of = [workload.board for workload in workloads]
    machines = [machine_named(name, drawn_of) for name in presets]
    allowed = bench_out.heeded(Times(seconds(max_wait), seconds(within)), [each.strategy for each in contenders])
    check_json(json_to)
    _check(trace, save_task, workloads)
    _check_boxes(machines, workloads, contenders, world)
    if several is not None:
        bench_boxes.run(several, workloads, machines, contenders, seed=seed, times=allowed, json_to=json_to)
        return
    number = len(machines) * len(workloads) * len(contenders) * len(world.precisions)
    rows_of_seeds: list[list[Row]] = []
    with Progress(console=err, transient=True) as bar:
        progress = bar.add_task("simulating", total=number * seeds)
        for one in range(seed, seed + seeds):
            rows: list[Row] = []
            drawn = workloads if one == seed else circumstances.of_task(task, board, order, tail, one)
            for machine, workload, each, mode in product(machines, drawn, contenders, world.precisions):
                place = _trace_of(trace, machine, workload, each, mode) if trace and number > 1 else trace
                rows.append(replace(world, seed=one).run(machine, workload, each, mode, trace=place, times=allowed))
                bar.advance(progress)
            rows_of_seeds.append(rows)
    bench_out.show_seeds(rows_of_seeds, seed, json_to)
    for sentence in dict.fromkeys(world.sentences):
        err.print(sentence)


def _check(trace: Path | None, save_task: Path | None, workloads: Sequence[Workload]) -> None:
    """Check before a long run that its files can be written after it; raises ConfigError."""
    from coe.lab.workloads import trace_file

    if trace is not None and (reason := why_not(trace)):
        raise ConfigError(f"--trace: {trace} {reason}; name a file")
    if save_task is not None:
        if len(workloads) > 1:
            raise ConfigError(f"--save-task writes one task, and {len(workloads)} are asked for; name one with --task")
        trace_file.write(save_task, workloads[0])


def _check_boxes(
    machines: Sequence[SimulatedMachine],
    workloads: Sequence[Workload],
    contenders: Sequence[Contender],
    world: SimulatedRuns,
) -> None:
    """Check before a long run that all runs are possible; raises ConfigError for unknown costs or too little memory."""
    from coe.lab.simulated_precision import prepared_run

    by_board = {workload.board.board: workload for workload in workloads}
    for machine in machines:
        for name, workload in by_board.items():
            for each in contenders:
                if None in world.precisions:
                    costs = machine.costs(workload.board)
                    machine.plan(workload.board, costs, each.strategy, machine.configuration(each.configuration, name))
                for prepared in world.precisions:
                    if prepared is not None:
                        prepared_run(machine, workload, each.strategy, prepared)


def _trace_of(
    path: Path, machine: SimulatedMachine, workload: Workload, contender: Contender, prepared: Prepared | None
) -> Path:
    """Return the path of a run's trace where several runs write traces."""
    parts = (workload.task, workload.order, machine.name, contender.name, *([prepared.mode] if prepared else []))
    run = re.sub(r"[^\w.-]+", "-", "-".join(parts))
    return path.with_name(f"{path.stem}-{run}{path.suffix}")
