"""From network outputs to findings: a classifier's probabilities, a detector's candidate boxes.

Detectors give thousands of candidates an image, of which few count. Steps over all candidates therefore take the whole
batch at once, and steps over the few that count take one image at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, isnan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import NOTHING, Box, Expert, Finding
from coe.errors import StoreError
from coe.store.kinds import ExpertInput
from experts.geometry import to_image

Floats = NDArray[np.float32]
Places = NDArray[np.intp]

_ROUNDING = 1e-3
"""Scores in 16 bits may exceed the range 0 to 1 by this much."""
_MORE = 4
"""How many times as many boxes the next round of suppression takes, if the boxes of the last round were too few."""


def classified(probabilities: torch.Tensor, expert: Expert) -> list[Finding]:
    """Return one finding for each row of `probabilities`, (n, labels) float: the likeliest label.

    Among equally likely labels, one of `expert.reject` wins. The margin is the lead over the next label, or 1 if there
    is no other label. Raises StoreError if a probability is not a finite number.
    """
    # Plain numbers: for the few rows of a batch, numpy and torch cost more than they save.
    order, findings = _against_first(expert), []
    for row in probabilities.tolist():
        if not isfinite(sum(row)):
            raise StoreError("its scores are not numbers; the weights are damaged or badly trained")
        score = max(row)
        place = row.index(score) if row.count(score) == 1 else next(place for place in order if row[place] == score)
        row.pop(place)
        margin = score - max(row) if row else 1.0
        findings.append(Finding(expert.id, expert.variant, expert.labels[place], score, margin=margin))
    return findings


@dataclass(frozen=True, slots=True)
class Cut:
    """What a detector keeps: boxes with a score of `threshold`; of boxes of one label that overlap by more than
    `overlap` (IoU) the best; and about `most` boxes in all, see `detected`.
    """

    threshold: float
    overlap: float
    most: int

    def __post_init__(self) -> None:
        """Raise StoreError for a threshold or an overlap that is not a number: no score would ever reach it."""
        if isnan(self.threshold) or isnan(self.overlap):
            raise StoreError("the threshold of its kind is not a number")


def detected(candidates: Floats, prepared: Sequence[ExpertInput], expert: Expert, cut: Cut) -> list[Finding]:
    """Return one finding for each image.

    candidates: (n, 4 + labels, N) float32: centre x, centre y, width, height in pixels of the input, then a score in
    0..1 for each label. A candidate's label is the label with its best score; among equals, one of `expert.reject`
    wins.

    Boxes are dropped as `cut` says. At most `cut.most` boxes are kept: first the best box of each label, all of them,
    because the verdict may depend on it; then boxes with labels of `expert.reject`; then the others. The finding's
    label is that of the best box whose label is in `expert.reject`, else that of the best box, else "none" with a score
    of 1 - the best score. Its margin is the least change of scores by which a label would appear or disappear, or the
    finding's label would change.

    Raises StoreError if scores are not numbers in 0..1, or if a box above the threshold has coordinates that are not
    finite: no finding follows from such outputs, and "none" least of all.
    """
    scores = candidates[:, 4:]
    if not scores.size:
        return [Finding(expert.id, expert.variant, NOTHING, 1.0, (), 1.0) for _ in prepared]
    _refuse_nonsense(scores)
    clear = scores.max(axis=1) >= cut.threshold
    # For each label, how near a candidate that does not count comes to being a box of that label.
    unclear = np.where(clear[:, None], np.float32(-1), scores).max(axis=2)
    order, findings = np.array(_against_first(expert)), []
    for number, image in enumerate(prepared):
        (places,) = clear[number].nonzero()
        if not len(places):
            highest = float(unclear[number].max())
            margin = cut.threshold - highest
            findings.append(Finding(expert.id, expert.variant, NOTHING, 1.0 - highest, (), margin))
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # the next line finds such numbers
            corners = corners_of(candidates[number, :4, places])
        if not np.isfinite(corners).all():
            raise StoreError(
                "its boxes have coordinates that are not numbers; the weights are damaged or badly trained"
            )
        of_labels = scores[number][:, places]
        seen = _Seen(corners, of_labels.max(axis=0), order[of_labels[order].argmax(axis=0)])
        margin = _margin(seen, of_labels, unclear[number], expert, cut.threshold)
        boxes = _boxes(seen, image, expert, cut)
        decisive = next((box for box in boxes if box.label in expert.reject), boxes[0])
        findings.append(Finding(expert.id, expert.variant, decisive.label, decisive.score, boxes, margin))
    return findings


def of_corners(boxes: torch.Tensor) -> Floats:
    """Return the boxes of one image, (N, 4 + labels): x1, y1, x2, y2 and scores, as candidates, (1, 4 + labels, N)."""
    left, top, right, bottom, *scores = boxes.float().cpu().numpy().T
    places = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
    return np.stack((*places, *scores))[None]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The k candidates of an image that count: corners (k, 4) in pixels of the input, scores (k), labels (k)."""

    corners: Floats
    scores: Floats
    labels: Places


def _against_first(expert: Expert) -> list[int]:
    """Return the indices of labels in the order in which ties are broken: labels to reject come first."""
    return sorted(range(len(expert.labels)), key=lambda place: expert.labels[place] not in expert.reject)


def _refuse_nonsense(scores: Floats) -> None:
    """Raise StoreError for scores that are not numbers in 0..1."""
    # The least and the greatest number are no numbers if any score is none.
    least, greatest = float(scores.min()), float(scores.max())
    if not (np.isfinite(least) and np.isfinite(greatest)):
        raise StoreError("its scores are not numbers; the weights are damaged or badly trained")
    if least < -_ROUNDING or greatest > 1 + _ROUNDING:
        raise StoreError(
            f"its scores go from {least:g} to {greatest:g}, not from 0 to 1; export the model with its final sigmoid"
        )


def _boxes(seen: _Seen, image: ExpertInput, expert: Expert, cut: Cut) -> tuple[Box, ...]:
    """Return the boxes that are kept, the best first, in pixels of the original image."""
    ranked = suppress(seen.corners, seen.scores, seen.labels, cut.overlap, cut.most)
    labels = seen.labels[ranked].tolist()
    kept = _chosen(labels, expert, cut.most)
    if len(kept) < len(ranked):
        ranked, labels = ranked[kept], [labels[rank] for rank in kept]
    corners = to_image(seen.corners[ranked].astype(np.float64), image).tolist()
    scores = seen.scores[ranked].tolist()
    return tuple(
        Box(expert.labels[label], score, (x1, y1, x2, y2))
        for label, score, (x1, y1, x2, y2) in zip(labels, scores, corners, strict=True)
    )


def _chosen(labels: list[int], expert: Expert, most: int) -> list[int]:
    """Return the ranks of the boxes that are kept, in rising order; `labels` are those of all boxes, by rank."""
    ranks = range(len(labels))
    if len(labels) <= most:
        return list(ranks)
    first: dict[int, int] = {}
    for rank in ranks:
        first.setdefault(labels[rank], rank)
    best = set(first.values())

    def group(rank: int) -> int:
        if rank in best:
            return 0
        return 1 if expert.labels[labels[rank]] in expert.reject else 2

    return sorted(sorted(ranks, key=group)[: max(most, len(best))])


def _margin(seen: _Seen, scores: Floats, unclear: Floats, expert: Expert, threshold: float) -> float:
    """Return the least change of scores by which a label appears or disappears, or the finding's label changes.

    scores: (labels, k) of the candidates that count; unclear: (labels), the greatest scores of all others. A label
    appears if a candidate's score for it reaches the threshold and is the candidate's best. It disappears if all its
    candidates fall under the threshold or score better for another label.
    """
    least = np.float32(threshold)
    others = scores.copy()
    others[seen.labels, np.arange(len(seen.labels))] = -1.0
    lasting = seen.scores - np.maximum(others.max(axis=0), least)
    missing = np.minimum((seen.scores - scores).min(axis=1), least - unclear).tolist()
    changes = [1.0]
    by_reject: dict[bool, list[float]] = {True: [], False: []}
    for place, label in enumerate(expert.labels):
        of_label = seen.labels == place
        if of_label.any():
            changes.append(float(lasting[of_label].max()))
            by_reject[label in expert.reject].append(float(seen.scores[of_label].max()))
        else:
            changes.append(missing[place])
    leaders = sorted(by_reject[True] or by_reject[False], reverse=True)[:2]
    changes += [better - worse for better, worse in pairwise(leaders)]
    return min(changes)


def suppress(corners: Floats, scores: Floats, labels: Places, overlap: float, most: int) -> Places:
    """Return the indices that non-maximum suppression within each label keeps, at most `most` of a label, best first.

    It calls torchvision's operator, as ultralytics' function does; but that function also stops after a time limit, so
    its result would depend on the load of the machine. Each label is suppressed by itself: the common trick of shifting
    the boxes of each label apart lets boxes left of or above the input overlap boxes of other labels.
    """
    groups = [(labels == label).nonzero()[0] for label in np.unique(labels)]
    kept = np.sort(np.concatenate([_suppressed(group, corners, scores, overlap, most) for group in groups]))
    return kept[np.argsort(-scores[kept], kind="stable")]


def _suppressed(group: Places, corners: Floats, scores: Floats, overlap: float, most: int) -> Places:
    """Return the first `most` boxes of a group that suppression keeps, best first.

    Whether a box stays depends on better boxes alone. So the best boxes go first, and more follow only if too few stay:
    thousands of boxes would be compared with each other.
    """
    from torchvision.ops import nms

    ranked = group[np.argsort(-scores[group], kind="stable")]
    size = most
    while True:
        part = ranked[:size]
        kept = nms(torch.from_numpy(corners[part]), torch.from_numpy(scores[part]), overlap).numpy()
        if len(kept) >= most or size >= len(ranked):
            return part[kept[:most]]
        size *= _MORE


def corners_of(centres: NDArray[Any]) -> NDArray[Any]:
    """Turn (N, 4) centre x, centre y, width, height into x1, y1, x2, y2."""
    middle, half = centres[:, :2], centres[:, 2:4] / 2
    return np.concatenate((middle - half, middle + half), axis=1)
