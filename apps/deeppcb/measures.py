"""Measures of detections: precision, recall, F-score, average precision. Boxes are x1, y1, x2, y2 in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
NEARLY = 0.002
"""F-scores that differ by at most this are equal when a threshold is chosen."""


@dataclass(frozen=True, slots=True)
class ImageBoxes:
    """One image: its true boxes (n, 4) with labels (n,), and the detected boxes (m, 4) with labels and scores (m,)."""

    true_boxes: Numbers
    true_labels: NDArray[np.int64]
    boxes: Numbers
    labels: NDArray[np.int64]
    scores: Numbers


@dataclass(frozen=True, slots=True)
class Score:
    """At one threshold: the share of detections that are right, and the share of true boxes that were found."""

    threshold: float
    precision: float
    recall: float

    @property
    def f(self) -> float:
        """The harmonic mean of precision and recall; 0 if both are."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def overlap(first: Numbers, second: Numbers) -> Numbers:
    """Return the intersection over union of each of (n, 4) with each of (m, 4): (n, m)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (first, second)]
    return np.asarray(common / np.maximum(areas[0][:, None] + areas[1][None, :] - common, 1e-9), dtype=np.float64)


def hits(image: ImageBoxes, least: float) -> NDArray[np.bool_]:
    """Tell for each detection whether it is right: it overlaps a true box of its label by more than `least`.

    The best-scored detection takes the true box that it overlaps most; a true box can be taken once.
    """
    right = np.zeros(len(image.scores), bool)
    if not len(image.true_boxes) or not len(image.scores):
        return right
    overlaps = overlap(image.boxes, image.true_boxes)
    overlaps[image.labels[:, None] != image.true_labels[None, :]] = 0
    for place in np.argsort(-image.scores, kind="stable"):
        best = int(overlaps[place].argmax())
        if overlaps[place, best] > least:
            right[place] = True
            overlaps[:, best] = 0
    return right


def average_precision(images: Sequence[ImageBoxes], label: int, least: float) -> float | None:
    """Return the area under precision over recall of a label, precision made monotonic; None without such boxes."""
    count = sum(int((image.true_labels == label).sum()) for image in images)
    if not count:
        return None
    right = np.concatenate([hits(image, least)[image.labels == label] for image in images])
    scores = np.concatenate([image.scores[image.labels == label] for image in images])
    right = right[np.argsort(-scores, kind="stable")]
    hits_so_far = np.cumsum(right)
    precision = hits_so_far / np.arange(1, len(right) + 1)
    # For each recall, the best precision at this or a lower threshold.
    reached = np.maximum.accumulate(precision[::-1])[::-1]
    return float(reached[right].sum() / count)


def mean_average_precision(images: Sequence[ImageBoxes], labels: int, least: float) -> float:
    """Return the mean over the labels that occur."""
    values = [average_precision(images, label, least) for label in range(labels)]
    occurring = [value for value in values if value is not None]
    return float(np.mean(occurring)) if occurring else 0.0


def score_at(images: Sequence[ImageBoxes], threshold: float, least: float) -> Score:
    """Return precision and recall over all labels of the detections scored `threshold` or more."""
    (score,) = _scores(images, least, [threshold])
    return score


def steady_score(images: Sequence[ImageBoxes], least: float) -> Score:
    """Return the score at the median of the thresholds whose F-score is the greatest or nearly so.

    Few images give many thresholds of nearly the same F-score; the least of them would call too much elsewhere.
    """
    scores = _scores(images, least, [float(limit) for limit in np.arange(0.05, 0.96, 0.01)])
    greatest = max(score.f for score in scores)
    near = [score for score in scores if score.f >= greatest - NEARLY]
    return near[len(near) // 2]


def _scores(images: Sequence[ImageBoxes], least: float, thresholds: Sequence[float]) -> list[Score]:
    right = np.concatenate([hits(image, least) for image in images])
    scores = np.concatenate([image.scores for image in images])
    true_boxes = sum(len(image.true_boxes) for image in images)
    found = []
    for threshold in thresholds:
        kept = scores >= threshold
        correct = int(right[kept].sum())
        found.append(Score(threshold, correct / max(1, int(kept.sum())), correct / max(1, true_boxes)))
    return found
