"""How far another way of running an expert agrees with torch in fp32, and below which margin not to believe it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from coe.core import Box, Expert, Finding
from coe.errors import StoreError
from coe.store.kinds import Image, Kind, Prepared
from coe.store.manifest import Agreement

OVERLAP = 0.9
"""The IoU at which two boxes are one."""
SAFETY = 1.5
"""What the largest shift of the samples is multiplied with; see `escalate_below`."""
_SURE = 1 - 1e-6


def findings(kind: Kind, expert: Expert, images: Sequence[Prepared], answer: Callable[[Image], Any]) -> list[Finding]:
    """Run images one by one; `answer` takes (1, 3, S, S) uint8 RGB. Raises StoreError if scores are no numbers."""
    found = [one for image in images for one in kind.postprocess(answer(image.pixels[None]), [image], expert)]
    if not all(math.isfinite(one.score) for one in found):
        raise StoreError("its scores are not numbers")
    return found


def compare(expected: Sequence[Finding], found: Sequence[Finding], *, generated: bool) -> Agreement:
    """Compare findings of the same images, in the same order; `generated` says that the images were made up."""
    pairs = list(zip(expected, found, strict=True))
    matches = [match for one, other in pairs for match in matched(one.boxes, other.boxes)]
    boxes = sum(len(one.boxes) + len(other.boxes) for one, other in pairs)
    differences = [abs(one.score - other.score) for one, other in pairs]
    differences += [abs(box.score - twin.score) for box, twin in matches]
    return Agreement(
        images=len(pairs),
        labels_equal=sum(one.labels == other.labels for one, other in pairs) / len(pairs),
        largest_score_difference=max(differences),
        boxes_matched=2 * len(matches) / boxes if boxes else None,
        generated=generated,
    )


def matched(boxes: Sequence[Box], others: Sequence[Box]) -> list[tuple[Box, Box]]:
    """Pair boxes of the same label at an IoU of `OVERLAP` or more, each once, those that overlap most first."""
    candidates = [
        (iou(one.xyxy, other.xyxy), first, second)
        for first, one in enumerate(boxes)
        for second, other in enumerate(others)
        if one.label == other.label
    ]
    pairs: dict[int, int] = {}
    for overlap, first, second in sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1:])):
        if overlap >= OVERLAP and first not in pairs and second not in pairs.values():
            pairs[first] = second
    return [(boxes[first], others[second]) for first, second in pairs.items()]


def iou(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Return what two boxes (x1, y1, x2, y2) have in common, as a share of what they cover together."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(0.0, width) * max(0.0, height)
    either = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - both
    return both / either if either > 0 else float(one == other)


def escalate_below(expected: Sequence[Finding], found: Sequence[Finding]) -> float:
    """Return the margin under which a finding of this variant is to be run again, 0 to 1.

    A variant says something else where its error pushed a finding across a border: where the border was nearer than
    the push. So what counts is the largest push that the samples show, also where it changed nothing: by how much a
    margin moved, or, where the finding changed, by the margins on both sides of the border together; and by how much
    the score of a box moved. A variant's own margin is never larger than the push that changed a finding, so every
    disagreement of the samples is caught. And where there was none, few samples do not lead to the 0 that means never.

    Pushes are compared as log-odds, 2 atanh(margin): an expert that is sure of all samples has margins near 1 that
    hardly move, while the same error moves a margin near 0 much. For two labels that is exact, for more it is cautious.

    `SAFETY`: the next image exceeds the largest push of n samples once in n + 1 times. Of errors that are normally
    distributed, half as much again as the largest of 32 is exceeded about once in 500 images, and even such an image is
    lost only if it also lies that near to a border. With fewer samples the factor is the same and protects less.
    """
    pushes = [0.0]
    for one, other in zip(expected, found, strict=True):
        before, after = log_odds(one.margin), log_odds(other.margin)
        pushes.append(abs(before - after) if one.labels == other.labels else before + after)
        pushes += [log_odds(abs(box.score - twin.score)) for box, twin in matched(one.boxes, other.boxes)]
    margin = math.tanh(SAFETY * max(pushes) / 2)
    # Upwards, so that what is rounded still catches all.
    return min(1.0, math.ceil(margin * 1e4) / 1e4)


def log_odds(margin: float) -> float:
    """Return log(p / q) of two likelihoods p + q = 1 with p - q = margin; of fp32 no more can be told than to 1e-6."""
    return 2 * math.atanh(min(margin, _SURE))
