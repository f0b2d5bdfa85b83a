"""How far a variant of an expert agrees with torch in fp32, and the margin under which a finding is in doubt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from coe.core import Box, Expert, Finding
from coe.errors import StoreError
from coe.store.kinds import ExpertInput, Image, Kind
from coe.store.manifest import Agreement
from coe.store.outputs import prove

OVERLAP = 0.9
"""The IoU from which two boxes match."""
SAFETY = 1.5
"""The factor on the largest push of the samples; see `escalate_below`."""
_SURE = 1 - 1e-6
_ANY = 1e-9
"""A push that gives the least threshold."""
_UNSEEN = 0.1
"""The threshold if both sides are so sure of all samples that their margins, near 1, hide every push."""


def findings(
    kind: Kind, expert: Expert, images: Sequence[ExpertInput], answer: Callable[[Image], Any]
) -> list[Finding]:
    """Run images one by one; `answer` takes (1, 3, S, S) uint8 RGB. Raises StoreError if an output is not a number."""
    results: list[Finding] = []
    for image in images:
        outputs = answer(image.pixels[None])
        prove(outputs)
        results += kind.postprocess(outputs, [image], expert)
    if not all(math.isfinite(result.score) for result in results):
        raise StoreError("its scores are not numbers")
    return results


def compare(expected: Sequence[Finding], actual: Sequence[Finding], *, generated: bool) -> Agreement:
    """Compare findings of the same images, in the same order; `generated` says that the images were made up."""
    pairs = list(zip(expected, actual, strict=True))
    matches = [match for before, after in pairs for match in matched(before.boxes, after.boxes)]
    boxes = sum(len(before.boxes) + len(after.boxes) for before, after in pairs)
    differences = [abs(before.score - after.score) for before, after in pairs]
    differences += [abs(box.score - twin.score) for box, twin in matches]
    return Agreement(
        images=len(pairs),
        labels_equal=sum(_same(before, after) for before, after in pairs) / len(pairs),
        largest_score_difference=max(differences),
        boxes_matched=2 * len(matches) / boxes if boxes else None,
        generated=generated,
    )


def matched(boxes: Sequence[Box], others: Sequence[Box]) -> list[tuple[Box, Box]]:
    """Pair boxes of the same label at an IoU of `OVERLAP` or more, each box once; the largest overlaps pair first."""
    candidates = [
        (iou(box.xyxy, other.xyxy), first, second)
        for first, box in enumerate(boxes)
        for second, other in enumerate(others)
        if box.label == other.label
    ]
    pairs: dict[int, int] = {}
    for overlap, first, second in sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1:])):
        if overlap >= OVERLAP and first not in pairs and second not in pairs.values():
            pairs[first] = second
    return [(boxes[first], others[second]) for first, second in pairs.items()]


def iou(box: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Return the intersection of two boxes (x1, y1, x2, y2) over their union."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    both = max(0.0, width) * max(0.0, height)
    either = sum((x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (box, other)) - both
    return both / either if either > 0 else float(box == other)


def escalate_below(expected: Sequence[Finding], actual: Sequence[Finding]) -> float:
    """Return the margin under which a finding of this variant is run again in fp32, 0 to 1.

    A variant's error pushes its findings. A finding changes if the push is larger than its distance to a border. So the
    threshold follows the largest push of the samples, whether or not it changed a finding: the amount by which a margin
    moved, or, if the finding changed, the sum of the margins on both sides of the border; and the amount by which the
    score of a box moved. A doubt that the variant has not is a change, too; one that it has without a margin is looked
    at again whatever the threshold is. The variant's margin is never larger than the push that changed a finding, so
    the threshold catches every disagreement of the samples. It is 0 (never) only if nothing moved, which shows only
    where the expert is not wholly sure.

    Pushes are compared as log-odds, 2 atanh(margin): an expert that is sure of all samples has margins near 1 that
    hardly move, but the same error moves a margin near 0 a lot. For two labels this is exact, for more it is cautious.

    `SAFETY`: the next image exceeds the largest push of n samples once in n + 1 times. If errors are normally
    distributed, an image exceeds 1.5 times the largest push of 32 samples about once in 500 images, and its finding is
    wrong only if it is also that near to a border. With fewer samples the factor is the same and protects less.
    """
    again = [bool(variant.doubt and not variant.margin) for variant in actual]
    if all(again):
        return 1.0  # nothing shows how far others are pushed
    pushes = [_ANY if any(again) else 0.0]
    for exact, variant in zip(expected, actual, strict=True):
        if variant.doubt and not variant.margin:
            continue
        before, after = log_odds(exact.margin), log_odds(variant.margin)
        pushes.append(abs(before - after) if _same(exact, variant) else before + after)
        pushes += [log_odds(abs(box.score - twin.score)) for box, twin in matched(exact.boxes, variant.boxes)]
    if not max(pushes) and all(finding.margin >= _SURE for finding in (*expected, *actual)):
        return _UNSEEN
    margin = math.tanh(SAFETY * max(pushes) / 2)
    # Rounded up, so that the rounded threshold still catches every disagreement.
    return min(1.0, math.ceil(margin * 1e4) / 1e4)


def _same(exact: Finding, variant: Finding) -> bool:
    """Tell whether a variant says the same labels, and lost no doubt."""
    return exact.labels == variant.labels and not (exact.doubt and not variant.doubt)


def log_odds(margin: float) -> float:
    """Return log(p / q) for probabilities p + q = 1 with p - q = margin; margins beyond fp32's 1 - 1e-6 are cut."""
    return 2 * math.atanh(min(margin, _SURE))
