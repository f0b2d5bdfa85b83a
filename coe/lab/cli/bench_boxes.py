"""`coe-bench sim --boxes`: a workload on several boxes and a network, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.tool_options import words_of
from coe.config import parse_bandwidth, parse_bytes, parse_seconds
from coe.errors import ConfigError
from coe.lab.cli.bench_out import choices, show_figures
from coe.lab.time_limits import Times
from coe.lab.workloads.workload import EVERY_S, Workload, synthetic

if TYPE_CHECKING:
    from coe.lab.cluster_bench import Scene
    from coe.lab.cluster_simulator import SimulatedNetwork
    from coe.lab.fleet import Fleet
    from coe.lab.simulated import Contender

MISHAPS = ("none", "lost", "joins")
MOST_BOXES = 1024

NETWORK = "0.2ms,1.25GB/s,500KB"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of this module, checked."""

    numbers: Sequence[int]
    boards: Sequence[str]
    mishaps: Sequence[str]
    network: SimulatedNetwork


def boxes_of(
    boxes: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Several equal boxes with a network, as 1,2,4,8.", show_default="one box"),
    ] = None,
    boards: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="With --boxes: images of all these boards in equal parts, instead of --task; names or files.",
        ),
    ] = None,
    mishap: Annotated[
        str,
        typer.Option(
            metavar="LIST|all", help="With --boxes: none; lost: a box dies at half time; joins: one more comes then."
        ),
    ] = MISHAPS[0],
    network: Annotated[
        str,
        typer.Option(
            metavar="LATENCY,BANDWIDTH,BYTES",
            help="With --boxes: of each box's link, and the bytes of an image, as 0.2ms,1.25GB/s,500KB.",
        ),
    ] = NETWORK,
) -> ClusterOptions | None:
    """Read the options of several boxes; None without --boxes. Raises ConfigError."""
    if boxes is None:
        return None
    numbers = [_number(word) for word in words_of(boxes)]
    mishaps = choices("--mishap", mishap, MISHAPS)
    if "lost" in mishaps and 1 in numbers:
        raise ConfigError("--mishap lost takes a box away, and --boxes 1 has no other; give at least 2 boxes")
    names = [] if boards is None else words_of(boards)
    return ClusterOptions(numbers, names, mishaps, _network(network))


def run(
    boxes: ClusterOptions,
    workloads: Sequence[Workload],
    machines: Sequence[Any],
    contenders: Sequence[Contender],
    *,
    seed: int,
    times: Times,
    json_to: str | None,
) -> None:
    """Run all workloads on all numbers of boxes, and show a row for each run."""
    from coe.lab.cluster_bench import Mishap, Scene
    from coe.lab.cluster_rows import ClusterRow, Rows, to_table

    if traced := next((workload for workload in workloads if workload.recorded), None):
        raise ConfigError(f"the trace {traced.task} has the findings of one box; leave out --boxes, or name a task")
    scenes: list[Scene] = [
        Scene(machine, workload, fleet, each, boxes.network, seed, times.heeded_by(each.strategy).max_wait_s)
        for machine in machines
        for workload, fleet in [_joined(workload, boxes.boards) for workload in workloads]
        for each in contenders
    ]
    kinds = [(number, Mishap(mishap)) for number in boxes.numbers for mishap in boxes.mishaps]
    rows: list[ClusterRow] = []
    with Progress(console=err, transient=True) as bar:
        progress = bar.add_task("simulating", total=len(scenes) * len(kinds))
        for scene in scenes:
            made = Rows(scene)
            for number, mishap in kinds:
                rows.append(made.row(number, mishap))
                bar.advance(progress)
    show_figures(to_table(rows), rows, json_to)


def workload_of(boards: Sequence[str], images: int | None, every_s: float | None, seed: int) -> Workload:
    """Return images of several boards; 1,000 of each board unless a number is given."""
    from coe.lab.fleet import fleet

    joined = fleet(boards)
    return synthetic(
        joined.rules,
        task=f"{len(boards)} boards" if len(boards) > 1 else joined.rules.board,
        requests=1000 * len(boards) if images is None else images,
        every_s=EVERY_S if every_s is None else every_s,
        seed=seed,
    )


def _joined(workload: Workload, boards: Sequence[str]) -> tuple[Workload, Fleet]:
    from coe.lab.fleet import Fleet, fleet

    if boards:
        return workload, fleet(boards)
    return workload, Fleet(workload.board, {workload.board.board: tuple(workload.board.components)})


def _number(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 4) or not 1 <= int(text) <= MOST_BOXES:
        raise ConfigError(f"--boxes: '{text}' is not a number of boxes from 1 to {MOST_BOXES:,}; write it like 1,2,4")
    return int(text)


def _network(text: str) -> SimulatedNetwork:
    from coe.lab.cluster_simulator import SimulatedNetwork

    parts = text.split(",")
    if len(parts) != 3:
        raise ConfigError(f"--network: '{text}' is no network; write a latency, a bandwidth and a size, as {NETWORK}")
    latency_s = parse_seconds(parts[0])
    if not math.isfinite(latency_s):
        raise ConfigError(f"--network: '{parts[0]}' is no latency; write it like 0.2ms")
    return SimulatedNetwork(latency_s, parse_bandwidth(parts[1]), parse_bytes(parts[2]))
