"""What a measured run says beside its row: the cost of second looks, and whether labels are equal."""

from __future__ import annotations

from collections.abc import Mapping

from coe.bench.alike import alike
from coe.bench.engine import Measured
from coe.core import FULL


def of_precisions(runs: Mapping[tuple[str, str], Measured]) -> list[str]:
    """Say of runs by strategy and precision what second looks cost, and whether the labels are those of fp32."""
    sentences = []
    for (name, precision), done in runs.items():
        if precision != FULL:
            sentences.append(_second_looks(done))
            sentences += [alike(runs[name, FULL], done)] if (name, FULL) in runs else []
    return sentences


def of_ways(runs: Mapping[tuple[str, str], Measured], suffix: str) -> list[str]:
    """Say of strategies that also ran the usual way, under their name with `suffix`, what ours gains."""
    sentences = []
    for (name, _), ours in runs.items():
        if (usual := runs.get((name + suffix, FULL))) is not None:
            gain = ours.row.images_per_s / usual.row.images_per_s if usual.row.images_per_s else 0.0
            sentences.append(f"{ours.row.strategy}: {gain:.2f} x the images/s of {usual.row.strategy}")
            sentences.append(alike(usual, ours, f"of {usual.row.strategy}"))
    return sentences


def _second_looks(one: Measured) -> str:
    seen = one.metrics
    return (
        f"{one.row.strategy}: {seen.escalated} of {seen.stages - seen.escalated} findings were run again in fp32, "
        f"{seen.changed} changed; that took {seen.escalated_s:.1f} of {seen.run_s:.1f} s of inference"
    )
