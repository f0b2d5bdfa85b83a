"""Do two runs of the same pictures say the same? Labels, by image."""

from __future__ import annotations

from coe.bench.engine import Measured
from coe.bench.recorded import recorded
from coe.core import asked_id

Labels = frozenset[tuple[str, str]]
"""Expert and label, of all experts that an image needed, as they were decided."""


def labels_by_image(one: Measured) -> list[tuple[str, Labels]]:
    """Return the images of a run with what was decided of them; where an expert looked twice, the second look."""
    seen = recorded(one.trace)
    found = []
    for arrival in seen.arrivals:
        findings = seen.findings.get(arrival.request.id, {})
        # A second look is sorted behind the first: its id begins with that of the first.
        decided = {asked_id(expert): finding.label for expert, finding in sorted(findings.items())}
        found.append((arrival.request.image, frozenset(decided.items())))
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
