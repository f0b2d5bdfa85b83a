"""Measured runs of the real engine as rows of figures, and their predictions: what `coe-bench run` reports."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board import rules
from coe.core import FULL
from coe.inspector.inspector import Picture
from coe.inspector.line_arguments import LineArguments
from coe.inspector.line_options import LineOptions
from coe.lab.rows import Heading, Latencies, MachineFigures, Row, row
from coe.lab.simulated import PlannedBox, contender, run_plan
from coe.lab.time_limits import ANY_TIME, Times
from coe.lab.workloads.recorded import recorded
from coe.lab.workloads.workload import Workload
from coe.profiler.line_run import LineRun, run_line, weights_files

_READ_REPEATS = 3


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run: its row, its strategy, and the run itself, to repeat or predict it."""

    row: Row
    strategy: str
    line_run: LineRun


def all_at_once(pictures: Sequence[Picture]) -> LineArguments:
    """Return the options of an inbox with room for all pictures of a run, in addition to the memory of the line."""
    return {"inbox": max(1, len(pictures)), "inbox_bytes": 1 << 62}


def measured_run(
    line_options: LineOptions,
    pictures: Sequence[Picture],
    *,
    heading: Heading,
    images_per_s: float | None = None,
    times: Times = ANY_TIME,
    settling: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> MeasuredRun:
    """Run pictures through a new line (see `run_line`) and measure it.

    Give `costs` in `line_options` to compare runs on one cost table: those of an earlier run with as many executors of
    the same devices in the same precision. `times` are the due times of the images, as far as the strategy heeds them.
    The row has `heading`, with the precision added, and latencies without those of the first `settling` images.
    If the line's disk has a bandwidth, it bounds plain reads, too.
    """
    precision, heeded = line_options.precision, times.heeded_by(line_options.strategy)
    latencies = Latencies(settling)
    run = run_line(
        line_options.but(max_wait_s=heeded.max_wait_s, watchers=[latencies]),
        [replace(picture, within_s=heeded.within_s) for picture in pictures],
        images_per_s=images_per_s,
        tick=tick,
    )
    metrics = run.metrics
    paths = weights_files(rules.load(line_options.only_board), line_options.store)
    read_s_per_byte = max(_plain_read_s_per_byte(paths), 1 / (line_options.disk_bandwidth or float("inf")))
    switch_s = metrics.switch_s / metrics.switches if metrics.switches else 0.0
    read_s = read_s_per_byte * metrics.switch_bytes / metrics.switches if metrics.switches else 0.0
    figures = MachineFigures(
        switch_ms=1e3 * switch_s,
        read_ms=1e3 * read_s,
        switch_ratio=switch_s / read_s if read_s else 0.0,
        control_share=metrics.control_s / metrics.wall_s if metrics.wall_s else 0.0,
        peak_reserved_bytes=metrics.peak_reserved_bytes,
        budget_bytes=run.budget_bytes,
        peak_rss_bytes=run.peak_rss_bytes,
        rss_growth_bytes=run.grown_bytes,
        peak_device_bytes=run.peak_device_bytes,
        cpu_ms_per_image=1e3 * run.cpu_s / max(1, metrics.images),
    )
    devices = Counter(executor.device for executor in run.plan.executors)
    device = ",".join(f"{name}={count}" for name, count in devices.items())
    words = [heading.strategy, *([precision] if precision != FULL else [])]
    heading = replace(heading, strategy=" ".join(words))
    return MeasuredRun(
        row(heading, device, metrics, latencies, within_s=times.within_s, machine=figures),
        line_options.strategy.name,
        run,
    )


def workload_of(measured: MeasuredRun) -> Workload:
    """Return the arrivals and findings of a measured run as a workload."""
    record = recorded(measured.line_run.trace)
    return Workload(measured.row.task, measured.row.order, measured.line_run.board, record.arrivals, record.findings)


def predict(measured: MeasuredRun, times: Times = ANY_TIME, settling: int = 0) -> Row:
    """Simulate a measured run: its arrivals, its findings, and the cost table that scheduled it.

    The table was measured before the run, so the row is a prediction, not a fit. Its latencies leave out the first
    `settling` images, too.
    """
    workload = replace(workload_of(measured), settling=settling)
    box = PlannedBox(measured.row.device, measured.line_run.costs, measured.line_run.plan, {})
    row = run_plan(workload, contender(measured.strategy), box, times=times)
    return replace(row, strategy=f"{measured.row.strategy} (predicted)")


def _plain_read_s_per_byte(paths: Sequence[Path]) -> float:
    """Return the median seconds a byte of reading files into one buffer, the plainest way to bring bytes to memory."""
    buffer = bytearray(max(path.stat().st_size for path in paths))
    costs = []
    for _ in range(_READ_REPEATS):
        for path in paths:
            with path.open("rb", buffering=0) as file:
                began = time.perf_counter()
                size = file.readinto(buffer)
                costs.append((time.perf_counter() - began) / max(1, size or 0))
    return statistics.median(costs)
