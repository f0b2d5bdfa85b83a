"""Findings out of network outputs: a classifier's probabilities, a detector's candidate boxes."""

from __future__ import annotations

from itertools import pairwise

import torch

from coe.core import NOTHING, Box, Expert, Finding
from coe.errors import StoreError
from coe.store.kinds import Prepared
from experts.geometry import to_image

_ROUNDING = 1e-3
"""Scores of 16 bits may pass 0 and 1 by this much."""


def classified(probabilities: torch.Tensor, expert: Expert) -> list[Finding]:
    """Return one finding for each row of `probabilities`, (n, labels) float: the likeliest label.

    Of equals it is one of `expert.reject`. Its margin is the lead over the next one, 1 where there is no other label.
    Raises StoreError for a row that holds something that is no number: no label of it is the likeliest.
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
    candidate has the label that it scores best; of equals, one of `expert.reject`.

    Boxes scoring under `threshold` are left out; of boxes of one label that overlap by more than `overlap` (IoU) the
    best stays. The best box of each label is always among those kept, for the verdict may hang on it; then come those
    of `expert.reject`, then the others, `most` in all. The finding's label is that of the best box whose label is in
    `expert.reject`, else of the best box, else "none" with 1 - the best score that was too low. Its margin is the least
    change of scores by which a label would come or go, or another would be told.

    Raises StoreError if scores are no numbers of 0..1, or a box that counts has no place: nothing can be said of such
    an image, least of all that there is nothing to see.
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
    told = next((box for box in boxes if box.label in expert.reject), boxes[0])
    return Finding(expert.id, expert.variant, told.label, told.score, boxes, margin)


def _against_first(expert: Expert) -> list[int]:
    """Return the places of labels in the order in which equals are taken: those to reject come first."""
    return sorted(range(len(expert.labels)), key=lambda place: expert.labels[place] not in expert.reject)


def _refuse_nonsense(candidates: torch.Tensor, threshold: float) -> None:
    """Raise StoreError for scores that are no numbers of 0..1, and for boxes that count but have no place."""
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
    """Return the boxes that are kept of those `ranked` by score, in that order; `labels` are those of all boxes."""
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
    """Return by how much scores would have to change for a label to come or go, or for another to be told.

    scores: (N, labels) in 0..1, N > 0; labels: (N), the label of each candidate. A label comes if one candidate reaches
    the threshold and is likelier to have it than any other; it goes if all its candidates fall under the threshold or
    are likelier to have another.
    """
    own = torch.nn.functional.one_hot(labels, scores.shape[1]).bool()
    best = scores[own]
    other = scores.masked_fill(own, -1.0).max(dim=1).values
    lasting = best - other.clamp(min=threshold)
    missing = best.clamp(min=threshold)[:, None] - scores
    changes = [1.0]
    told: dict[bool, list[float]] = {True: [], False: []}
    for place, label in enumerate(expert.labels):
        seen = (labels == place) & (best >= threshold)
        if bool(seen.any()):
            changes.append(float(lasting[seen].max()))
            told[label in expert.reject].append(float(best[seen].max()))
        else:
            changes.append(float(missing[:, place].min()))
    changes += [better - worse for better, worse in pairwise(sorted(told[True] or told[False], reverse=True)[:2])]
    return min(changes)


def suppress(corners: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, overlap: float) -> torch.Tensor:
    """Return the indices that non-maximum suppression within each label keeps, best first.

    torchvision's operator, the one that ultralytics' own function calls; that function also stops after a time limit,
    so what it returns would depend on how busy the machine is. Each label is suppressed by itself: the common trick,
    to move the boxes of each label away from all others, lets boxes left of or above the input fall on other labels'.
    """
    from torchvision.ops import nms

    kept = [
        own[nms(corners[own], scores[own], overlap)]
        for own in ((labels == label).nonzero().flatten() for label in labels.unique())
    ]
    found = torch.cat(kept).sort().values if kept else torch.zeros(0, dtype=torch.long)
    return found[scores[found].sort(descending=True, stable=True).indices]


def corners_of(centres: torch.Tensor) -> torch.Tensor:
    """Turn (N, 4) centre x, centre y, width, height into x1, y1, x2, y2."""
    middle, half = centres[:, :2], centres[:, 2:4] / 2
    return torch.cat((middle - half, middle + half), dim=1)
