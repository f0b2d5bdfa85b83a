"""Measured runs of the real engine as rows of figures, and their predictions: what `coe-bench run` reports."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from coe.board import rules
from coe.core import FULL, Batch, Finding, decided
from coe.inspector.inspector import Picture
from coe.inspector.line_options import LineArguments, LineOptions
from coe.lab.rows import Heading, Latencies, MachineFigures, Row, row
from coe.lab.simulated import PlannedBox, contender, run_plan
from coe.lab.workloads.workload import Workload
from coe.profiler.line_run import LineRun, run_line, weights_files
from coe.scheduler.events import Arrived, Finished, Run, RunFailed, Trace, single_steps
from coe.sim.agenda import Arrival


@dataclass(frozen=True, slots=True)
class Recorded:
    """Requests in order of arrival, with ids 0, 1, 2, ...; findings by these ids, then by expert."""

    arrivals: tuple[Arrival, ...]
    findings: dict[int, dict[str, Finding]]


def recorded(trace: Trace) -> Recorded:
    """Read a trace; images that were rejected before they arrived are left out."""
    arrivals: list[Arrival] = []
    findings: dict[int, dict[str, Finding]] = {}
    numbers: dict[int, int] = {}
    running: defaultdict[str, deque[Batch]] = defaultdict(deque)
    began_s: float | None = None
    steps = ((now, *step) for now, event, commands in trace for step in single_steps(event, commands))
    for now, event, commands in steps:
        if isinstance(event, Arrived):
            began_s = now if began_s is None else began_s
            number = numbers[event.request.id] = len(arrivals)
            due_s, since_s = event.request.due_s - began_s, event.request.since_s(now) - began_s
            request = replace(event.request, id=number, due_s=due_s, submitted_s=since_s)
            arrivals.append(Arrival(now - began_s, request))
        elif isinstance(event, Finished | RunFailed):
            batch = running[event.executor].popleft()
            answered = event.findings if isinstance(event, Finished) else ()
            # Not strict: where a batch gave too few findings, its stages ran again.
            for stage, finding in zip(batch.stages, answered, strict=False):
                findings.setdefault(numbers[stage.request_id], {})[stage.expert] = finding
        for command in commands:
            if isinstance(command, Run):
                running[command.executor].append(command.batch)
    return Recorded(tuple(arrivals), findings)


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
    settling: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> MeasuredRun:
    """Run pictures through a new line (see `run_line`) and measure it.

    Give `costs` in `line_options` to compare runs on one cost table: those of an earlier run with as many executors of
    the same devices in the same precision.
    The row has `heading`, with the precision added, and latencies without those of the first `settling` images.
    If the line's disk has a bandwidth, it bounds plain reads, too.
    """
    precision, latencies = line_options.precision, Latencies(settling)
    run = run_line(line_options.but(watchers=[latencies]), pictures, images_per_s=images_per_s, tick=tick)
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
    return MeasuredRun(row(heading, device, metrics, latencies, machine=figures), line_options.strategy.name, run)


def workload_of(measured: MeasuredRun) -> Workload:
    """Return the arrivals and findings of a measured run as a workload."""
    record = recorded(measured.line_run.trace)
    return Workload(measured.row.task, measured.row.order, measured.line_run.board, record.arrivals, record.findings)


def predict(measured: MeasuredRun, max_wait_s: float | None = None, settling: int = 0) -> Row:
    """Simulate a measured run: its arrivals, its findings, and the cost table that scheduled it.

    The table was measured before the run, so the row is a prediction, not a fit. Its latencies leave out the first
    `settling` images, too.
    """
    workload = workload_of(measured)
    box = PlannedBox(measured.row.device, measured.line_run.costs, measured.line_run.plan, {})
    row = run_plan(workload, contender(measured.strategy), box, max_wait_s=max_wait_s, settling=settling)
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


Labels = frozenset[tuple[str, str]]
"""Pairs of expert and decided label, of all experts that an image needed."""


def of_precisions(runs: Mapping[tuple[str, str], MeasuredRun]) -> list[str]:
    """Return sentences on runs by strategy and precision: the cost of second looks, and labels equal to fp32's."""
    sentences = []
    for (name, precision), run in runs.items():
        if precision != FULL:
            sentences.append(_second_looks(run))
            sentences += [_equal_labels(runs[name, FULL], run)] if (name, FULL) in runs else []
    return sentences


def middle(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return the run whose speed is the median of the runs; of an even number, the slower of the two in the middle."""
    return sorted(runs, key=lambda run: run.row.images_per_s)[(len(runs) - 1) // 2]


def of_rounds(runs: Mapping[tuple[str, str], Sequence[MeasuredRun]]) -> list[str]:
    """Return sentences that compare each way with the first, round by round, if there are several rounds.

    Runs of a round come one after another, so what else the machine does then slows all of them.
    """
    (first, base), *others = runs.items()
    if len(base) < 2:
        return []
    sentences = []
    for way, again in others:
        ratios = [run.row.images_per_s / before.row.images_per_s for run, before in zip(again, base, strict=True)]
        sentences.append(
            f"{_named(way)} / {_named(first)}: {median(ratios):.2f} times the images a second (median of {len(ratios)} "
            f"rounds, {min(ratios):.2f} to {max(ratios):.2f})"
        )
    return sentences


def of_paces(runs: Mapping[tuple[str, str], MeasuredRun]) -> list[str]:
    """Return sentences on runs whose batches took clearly longer, or shorter, at the end than measured before."""
    return [
        f"{_named(way)}: at the end batches took {pace:.2f} times as long as measured; the costs followed"
        for way, run in runs.items()
        if (pace := run.line_run.metrics.pace) != 1
    ]


def _named(way: tuple[str, str]) -> str:
    name, precision = way
    return name if precision == FULL else f"{name} {precision}"


def of_ways(runs: Mapping[tuple[str, str], MeasuredRun], suffix: str) -> list[str]:
    """Return sentences on the gain of strategies that the eager baseline also ran, under their name with `suffix`."""
    sentences = []
    for (name, _), ours in runs.items():
        if (eager := runs.get((name + suffix, FULL))) is not None:
            gain = ours.row.images_per_s / eager.row.images_per_s if eager.row.images_per_s else 0.0
            sentences.append(f"{ours.row.strategy}: {gain:.2f} x the images/s of {eager.row.strategy}")
            sentences.append(_equal_labels(eager, ours, f"of {eager.row.strategy}"))
    return sentences


def _second_looks(run: MeasuredRun) -> str:
    metrics = run.line_run.metrics
    findings = metrics.stages - metrics.escalated
    return (
        f"{run.row.strategy}: {metrics.escalated} of {findings} findings were run again in fp32, "
        f"{metrics.changed} changed; that took {metrics.escalated_s:.1f} of {metrics.run_s:.1f} s of inference"
    )


def _equal_labels(reference: MeasuredRun, other: MeasuredRun, those: str = "in fp32") -> str:
    """Return a sentence on how many images of both runs have the labels of the reference."""
    expected = dict(_labels_by_image(reference))
    actual = _labels_by_image(other)
    equal = sum(labels == expected.get(image) for image, labels in actual)
    return (
        f"{other.row.strategy}: labels equal to those {those} on {equal:,} of {len(actual):,} images "
        f"({equal / max(1, len(actual)):.2%})"
    )


def _labels_by_image(run: MeasuredRun) -> list[tuple[str, Labels]]:
    """Return the images of a run with their decided labels; where an expert looked twice, the second look counts."""
    record = recorded(run.line_run.trace)
    decisions = []
    for arrival in record.arrivals:
        findings = decided(record.findings.get(arrival.request.id, {}))
        labels = frozenset((expert, finding.label) for expert, finding in findings.items())
        decisions.append((arrival.request.image, labels))
    return decisions
