"""From network outputs to findings: a classifier's probabilities, a detector's candidate boxes."""

from __future__ import annotations

from itertools import pairwise

import torch

from coe.core import NOTHING, Box, Expert, Finding
from coe.errors import StoreError
from coe.store.kinds import Prepared
from experts.geometry import to_image

_ROUNDING = 1e-3
"""Scores in 16 bits may exceed the range 0 to 1 by this much."""


def classified(probabilities: torch.Tensor, expert: Expert) -> list[Finding]:
    """Return one finding for each row of `probabilities`, (n, labels) float: the likeliest label.

    Among equally likely labels, one of `expert.reject` wins. The margin is the lead over the next label, or 1 if there
    is no other label. Raises StoreError if a probability is not a finite number.
    """
    probabilities = probabilities.float().cpu()
    if not bool(torch.isfinite(probabilities).all()):
        raise StoreError("its scores are not numbers; the weights are damaged or badly trained")
    order = _against_first(expert)
    scores, places = probabilities[:, order].max(dim=1)
    places = torch.tensor(order)[places]
    several = probabilities.shape[1] > 1
    leads = scores - probabilities.topk(2, dim=1).values[:, 1] if several else torch.ones_like(scores)
    return [
        Finding(expert.id, expert.variant, expert.labels[place], score, margin=lead)
        for score, place, lead in zip(scores.tolist(), places.tolist(), leads.tolist(), strict=True)
    ]


def detected(
    candidates: torch.Tensor, prepared: Prepared, expert: Expert, *, threshold: float, overlap: float, most: int
) -> Finding:
    """Return the finding of one image.

    candidates: (N, 4 + labels) float: x1, y1, x2, y2 in pixels of the input, then a score in 0..1 for each label. A
    candidate's label is the label with its best score; among equals, one of `expert.reject` wins.

    Boxes with a score under `threshold` are dropped; of boxes of one label that overlap by more than `overlap` (IoU)
    the best stays. At most `most` boxes are kept: first the best box of each label, all of them, because the verdict
    may depend on it; then boxes with labels of `expert.reject`; then the others. The finding's label is that of the
    best box whose label is in `expert.reject`, else that of the best box, else "none" with a score of 1 - the best
    score. Its margin is the least change of scores by which a label would appear or disappear, or the finding's label
    would change.

    Raises StoreError if scores are not numbers in 0..1, or if a box above the threshold has coordinates that are not
    finite: no finding follows from such outputs, and "none" least of all.
    """
    candidates = candidates.float().cpu()
    _refuse_nonsense(candidates, threshold)
    corners, scores = candidates[:, :4], candidates[:, 4:]
    order = _against_first(expert)
    best, places = scores[:, order].max(dim=1)
    labels = torch.tensor(order)[places]
    clear = best >= threshold
    if not bool(clear.any()):
        margin = threshold - float(best.max()) if len(best) else 1.0
        return Finding(expert.id, expert.variant, NOTHING, 1.0 - float(best.max()) if len(best) else 1.0, (), margin)
    margin = _margin(scores, labels, expert, threshold)
    corners, best, labels = corners[clear], best[clear], labels[clear]
    boxes = tuple(
        Box(expert.labels[label], score, to_image((x1, y1, x2, y2), prepared))
        for label, score, (x1, y1, x2, y2) in (
            (int(labels[place]), float(best[place]), corners[place].tolist())
            for place in _chosen(suppress(corners, best, labels, overlap).tolist(), labels.tolist(), expert, most)
        )
    )
    decisive = next((box for box in boxes if box.label in expert.reject), boxes[0])
    return Finding(expert.id, expert.variant, decisive.label, decisive.score, boxes, margin)


def _against_first(expert: Expert) -> list[int]:
    """Return the indices of labels in the order in which ties are broken: labels to reject come first."""
    return sorted(range(len(expert.labels)), key=lambda place: expert.labels[place] not in expert.reject)


def _refuse_nonsense(candidates: torch.Tensor, threshold: float) -> None:
    """Raise StoreError for scores that are not numbers in 0..1, and for boxes that count without finite coordinates."""
    scores = candidates[:, 4:]
    if not bool(torch.isfinite(scores).all()):
        raise StoreError("its scores are not numbers; the weights are damaged or badly trained")
    if len(scores) and not -_ROUNDING <= float(scores.min()) <= float(scores.max()) <= 1 + _ROUNDING:
        raise StoreError(
            f"its scores go from {float(scores.min()):g} to {float(scores.max()):g}, not from 0 to 1; "
            "export the model with the sigmoid that makes them so"
        )
    clear = scores.max(dim=1).values >= threshold
    if not bool(torch.isfinite(candidates[clear, :4]).all()):
        raise StoreError("its boxes have coordinates that are not numbers; the weights are damaged or badly trained")


def _chosen(ranked: list[int], labels: list[int], expert: Expert, most: int) -> list[int]:
    """Return the boxes that are kept of `ranked`, which is by score, in the same order; `labels` are by box."""
    first: dict[int, int] = {}
    for place in ranked:
        first.setdefault(labels[place], place)
    best = set(first.values())

    def rank(place: int) -> int:
        if place in best:
            return 0
        return 1 if expert.labels[labels[place]] in expert.reject else 2

    kept = set(sorted(ranked, key=rank)[: max(most, len(best))])
    return [place for place in ranked if place in kept]


def _margin(scores: torch.Tensor, labels: torch.Tensor, expert: Expert, threshold: float) -> float:
    """Return the least change of scores by which a label appears or disappears, or the finding's label changes.

    scores: (N, labels) in 0..1, N > 0; labels: (N), the label of each candidate. A label appears if a candidate's score
    for it reaches the threshold and is the candidate's best. It disappears if all its candidates fall under the
    threshold or score better for another label.
    """
    chosen = torch.nn.functional.one_hot(labels, scores.shape[1]).bool()
    best = scores[chosen]
    other = scores.masked_fill(chosen, -1.0).max(dim=1).values
    lasting = best - other.clamp(min=threshold)
    missing = best.clamp(min=threshold)[:, None] - scores
    changes = [1.0]
    by_reject: dict[bool, list[float]] = {True: [], False: []}
    for place, label in enumerate(expert.labels):
        seen = (labels == place) & (best >= threshold)
        if bool(seen.any()):
            changes.append(float(lasting[seen].max()))
            by_reject[label in expert.reject].append(float(best[seen].max()))
        else:
            changes.append(float(missing[:, place].min()))
    leaders = sorted(by_reject[True] or by_reject[False], reverse=True)[:2]
    changes += [better - worse for better, worse in pairwise(leaders)]
    return min(changes)


def suppress(corners: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, overlap: float) -> torch.Tensor:
    """Return the indices that non-maximum suppression within each label keeps, best first.

    It calls torchvision's operator, as ultralytics' function does; but that function also stops after a time limit, so
    its result would depend on the load of the machine. Each label is suppressed by itself: the common trick of shifting
    the boxes of each label apart lets boxes left of or above the input overlap boxes of other labels.
    """
    from torchvision.ops import nms

    groups = [(labels == label).nonzero().flatten() for label in labels.unique()]
    parts = [group[nms(corners[group], scores[group], overlap)] for group in groups]
    kept = torch.cat(parts).sort().values if parts else torch.zeros(0, dtype=torch.long)
    return kept[scores[kept].sort(descending=True, stable=True).indices]


def corners_of(centres: torch.Tensor) -> torch.Tensor:
    """Turn (N, 4) centre x, centre y, width, height into x1, y1, x2, y2."""
    middle, half = centres[:, :2], centres[:, 2:4] / 2
    return torch.cat((middle - half, middle + half), dim=1)
