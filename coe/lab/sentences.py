"""Sentences about measured runs: the cost of second looks, and whether labels are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from coe.core import FULL, decided
from coe.lab.measured_run import MeasuredRun
from coe.lab.workloads.recorded import recorded

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
