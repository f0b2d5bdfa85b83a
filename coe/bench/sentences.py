"""What a measured run says beside its row: the cost of second looks, and whether labels are equal."""

from __future__ import annotations

from collections.abc import Mapping

from coe.bench.engine import MeasuredRun
from coe.bench.recorded import recorded
from coe.core import FULL, decided

Labels = frozenset[tuple[str, str]]
"""Expert and label, of all experts that an image needed, as they were decided."""


def of_precisions(runs: Mapping[tuple[str, str], MeasuredRun]) -> list[str]:
    """Say of runs by strategy and precision what second looks cost, and whether the labels are those of fp32."""
    sentences = []
    for (name, precision), done in runs.items():
        if precision != FULL:
            sentences.append(_second_looks(done))
            sentences += [_alike(runs[name, FULL], done)] if (name, FULL) in runs else []
    return sentences


def of_ways(runs: Mapping[tuple[str, str], MeasuredRun], suffix: str) -> list[str]:
    """Say of strategies that also ran the usual way, under their name with `suffix`, what ours gains."""
    sentences = []
    for (name, _), ours in runs.items():
        if (usual := runs.get((name + suffix, FULL))) is not None:
            gain = ours.row.images_per_s / usual.row.images_per_s if usual.row.images_per_s else 0.0
            sentences.append(f"{ours.row.strategy}: {gain:.2f} x the images/s of {usual.row.strategy}")
            sentences.append(_alike(usual, ours, f"of {usual.row.strategy}"))
    return sentences


def _second_looks(one: MeasuredRun) -> str:
    seen = one.metrics
    return (
        f"{one.row.strategy}: {seen.escalated} of {seen.stages - seen.escalated} findings were run again in fp32, "
        f"{seen.changed} changed; that took {seen.escalated_s:.1f} of {seen.run_s:.1f} s of inference"
    )


def _alike(full: MeasuredRun, other: MeasuredRun, those: str = "in fp32") -> str:
    """Say on how many images of two runs of the same pictures the labels are equal to `those` of the first."""
    right = dict(_labels_by_image(full))
    mine = _labels_by_image(other)
    equal = sum(labels == right.get(image) for image, labels in mine)
    return (
        f"{other.row.strategy}: labels equal to those {those} on {equal:,} of {len(mine):,} images "
        f"({equal / max(1, len(mine)):.2%})"
    )


def _labels_by_image(one: MeasuredRun) -> list[tuple[str, Labels]]:
    """Return the images of a run with what was decided of them; where an expert looked twice, the second look."""
    seen = recorded(one.trace)
    found = []
    for arrival in seen.arrivals:
        findings = decided(seen.findings.get(arrival.request.id, {}))
        labels = frozenset((expert, finding.label) for expert, finding in findings.items())
        found.append((arrival.request.image, labels))
    return found
