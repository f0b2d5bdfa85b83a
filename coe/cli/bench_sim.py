"""`coe-bench sim`: compares strategies in virtual time, on a simulated box."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.cli import bench_out
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.options import JsonOption, MaxWaitOption, WithinOption
from coe.errors import ConfigError, did_you_mean
from coe.files import why_not
from coe.sim import preset
from coe.sim.workload import ORDERS, TAILS, TASKS

if TYPE_CHECKING:
    from coe.bench.rows import Row
    from coe.bench.simulated import Contender
    from coe.sim.machine import Machine
    from coe.sim.workload import Workload


def sim(  # noqa: PLR0913
    task: Annotated[
        str, typer.Option(metavar="LIST|all|TRACE", help=f"{', '.join(TASKS)} (paper section 5.1), or a trace file.")
    ] = "A1",
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
        typer.Option(metavar="LIST|all|FILE", help=f"{', '.join(preset.names())}, or the YAML file of another box."),
    ] = "numa-rtx3080ti",
    strategy: Annotated[str, typer.Option(metavar="LIST|all", help="One or more, separated by commas.")] = "all",
    within: WithinOption = None,
    max_wait: MaxWaitOption = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=config.MAX_SEED, help="Seed of the random components and labels."),
    ] = 0,
    json_to: JsonOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw throughput and switches, as pictures in a folder.")
    ] = None,
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

    "at least" is the lower bound of the column before it: no order of the images could do better. Labels are drawn by
    the shares that the rules state, unless a trace has recorded findings.

    Example: coe-bench sim --task A1,B1 --strategy samba,coserve --plot out/
    """
    from coe.bench.simulated import CONTENDERS, contender, simulated_run
    from coe.sim.machine import Machine

    contenders = [contender(name) for name in (CONTENDERS if strategy.strip() == "all" else split(strategy))]
    machines = [Machine(name) for name in (preset.names() if device.strip() == "all" else split(device))]
    workloads = workloads_of(task, order, tail, seed)
    allowed = bench_out.times(within, max_wait, [each.strategy.name for each in contenders])
    bench_out.check_json(json_to)
    _check(plot, trace, save_task, workloads)
    _check_boxes(machines, workloads, contenders)
    rows: list[Row] = []
    several = len(machines) * len(workloads) * len(contenders) > 1
    with Progress(console=err, transient=True) as bar:
        progress = bar.add_task("simulating", total=len(machines) * len(workloads) * len(contenders))
        for machine in machines:
            for workload in workloads:
                for each in contenders:
                    place = _trace_of(trace, machine, workload, each) if trace and several else trace
                    rows.append(simulated_run(machine, workload, each, seed=seed, trace=place, times=allowed))
                    bar.advance(progress)
    if plot is not None:
        from coe.bench.bars import draw

        for path in draw(rows, plot, command=" ".join(["coe-bench", *(shlex.quote(word) for word in sys.argv[1:])])):
            err.print(f"drew {path}", soft_wrap=True)
    bench_out.show(rows, json_to)


def split(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return [name.strip() for name in text.split(",")]


def _choices(option: str, text: str, choices: Sequence[str] | Mapping[str, object]) -> list[str]:
    names = list(choices) if text.strip() == "all" else split(text)
    for name in names:
        if name not in choices:
            raise ConfigError(f"{option}: there is no '{name}'{did_you_mean(name, choices)}")
    return names


def workloads_of(task: str, order: str | None, tail: str | None, seed: int) -> list[Workload]:
    """Make the tasks in every order and tail of the options; a trace file has its own order and tail."""
    from coe.sim import trace_file

    orders, tails = _choices("--order", order or ORDERS[0], ORDERS), _choices("--tail", tail or "board", TAILS)
    workloads: list[Workload] = []
    for name in TASKS if task.strip() == "all" else split(task):
        if name in TASKS:
            workloads += [trace_file.workload(name, order=o, tail=t, seed=seed) for o in orders for t in tails]
            continue
        workload = trace_file.workload(name)
        for option, given in (("--order", order), ("--tail", tail)):
            if given is not None:
                raise ConfigError(f"{option} is for tasks, and the trace {name} has its own; leave the option out")
        workloads.append(workload)
    return workloads


def _check(plot: Path | None, trace: Path | None, save_task: Path | None, workloads: Sequence[Workload]) -> None:
    """Check before a long run that its files can be written after it; raises ConfigError."""
    from coe.sim import trace_file

    if plot is not None:
        try:
            plot.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--plot: {plot} cannot be a folder for pictures: {error.strerror or error}") from None
    if trace is not None and (reason := why_not(trace)):
        raise ConfigError(f"--trace: {trace} {reason}; name a file")
    if save_task is not None:
        if len(workloads) > 1:
            raise ConfigError(f"--save-task writes one task, and {len(workloads)} are asked for; name one with --task")
        trace_file.write(save_task, workloads[0])


def _check_boxes(machines: Sequence[Machine], workloads: Sequence[Workload], contenders: Sequence[Contender]) -> None:
    """Check before a long run that all runs are possible; raises ConfigError for unknown costs or too little memory."""
    boards = {workload.board.board: workload.board for workload in workloads}
    for machine in machines:
        for name, board in boards.items():
            costs = machine.costs(board)
            for each in contenders:
                machine.plan(board, costs, each.strategy, machine.configuration(each.configuration, name))


def _trace_of(path: Path, machine: Machine, workload: Workload, contender: Contender) -> Path:
    """Return the path of a run's trace where several runs write traces."""
    run = re.sub(r"[^\w.-]+", "-", "-".join((workload.task, workload.order, machine.name, contender.name)))
    return path.with_name(f"{path.stem}-{run}{path.suffix}")
