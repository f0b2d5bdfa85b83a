"""Do two runs of the same pictures say the same? Labels, by image."""

from __future__ import annotations

from coe.bench.engine import Measured
from coe.bench.recorded import recorded
from coe.core import decided

Labels = frozenset[tuple[str, str]]
"""Expert and label, of all experts that an image needed, as they were decided."""


def labels_by_image(one: Measured) -> list[tuple[str, Labels]]:
    """Return the images of a run with what was decided of them; where an expert looked twice, the second look."""
    seen = recorded(one.trace)
    found = []
    for arrival in seen.arrivals:
        findings = decided(seen.findings.get(arrival.request.id, {}))
        labels = frozenset((expert, finding.label) for expert, finding in findings.items())
        found.append((arrival.request.image, labels))
    return found


def alike(full: Measured, other: Measured, those: str = "in fp32") -> str:
    """Say on how many images of two runs of the same pictures the labels are equal to `those` of the first."""
    right = dict(labels_by_image(full))
    mine = labels_by_image(other)
    equal = sum(labels == right.get(image) for image, labels in mine)
    return (
        f"{other.row.strategy}: labels equal to those {those} on {equal:,} of {len(mine):,} images "
        f"({equal / max(1, len(mine)):.2%})"
    )
