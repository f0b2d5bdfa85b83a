"""Findings out of network outputs: a classifier's probabilities, a detector's candidate boxes."""

from __future__ import annotations

import torch

from coe.core import NOTHING, Box, Expert, Finding
from coe.kinds import Prepared
from experts.geometry import to_image


def classified(probabilities: torch.Tensor, expert: Expert) -> list[Finding]:
    """Return one finding for each row of `probabilities`, (n, labels) float: the likeliest label.

    Its margin is the lead over the next one, 1 where there is no other label.
    """
    probabilities = probabilities.float().cpu()
    scores, places = probabilities.max(dim=1)
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

    candidates: (N, 4 + labels) float: x1, y1, x2, y2 in pixels of the input, then a score in 0..1 for each label.
    Boxes scoring under `threshold` are left out; of boxes of one label that overlap by more than `overlap` (IoU) the
    best stays, and at most `most` in all. The finding's label is that of the best box whose label is in
    `expert.reject`, else of the best box, else "none" with 1 - the best score that was too low. Its margin is how far
    the scores were from another label; a box more or less of the same label does not matter to it.
    """
    candidates = candidates.float().cpu()
    scores, labels = candidates[:, 4:].max(dim=1)
    margin = _lead(scores, labels, expert, threshold)
    clear = scores >= threshold
    if not bool(clear.any()):
        best = float(scores.max()) if len(scores) else 0.0
        return Finding(expert.id, expert.variant, NOTHING, 1.0 - best, margin=margin)
    corners, scores, labels = candidates[clear, :4], scores[clear], labels[clear]
    kept = suppress(corners, scores, labels, overlap)[:most]
    boxes = tuple(
        Box(expert.labels[label], score, to_image((x1, y1, x2, y2), prepared))
        for label, score, (x1, y1, x2, y2) in zip(
            labels[kept].tolist(), scores[kept].tolist(), corners[kept].tolist(), strict=True
        )
    )
    told = next((box for box in boxes if box.label in expert.reject), boxes[0])
    return Finding(expert.id, expert.variant, told.label, told.score, boxes, margin)


def _lead(scores: torch.Tensor, labels: torch.Tensor, expert: Expert, threshold: float) -> float:
    """Return by how much scores, (N) in 0..1 with their (N) labels, would have to change for `detected`'s label to.

    Labels to reject come before all others, and within both the best score tells; what is under the threshold tells
    nothing.
    """
    if not len(scores):
        return 1.0
    best = {
        label: float(scores[labels == place].max())
        for place, label in enumerate(expert.labels)
        if bool((labels == place).any())
    }
    rejected, others = (
        sorted((score for label, score in best.items() if (label in expert.reject) is wanted), reverse=True)
        for wanted in (True, False)
    )
    above, below = (rejected, []) if rejected and rejected[0] >= threshold else (others, rejected)
    if not above or above[0] < threshold:
        return threshold - max(best.values())
    rivals = [threshold, *above[1:2]]
    return min(above[0] - max(rivals), *(threshold - score for score in below[:1]), 1.0)


def suppress(corners: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, overlap: float) -> torch.Tensor:
    """Return the indices that non-maximum suppression within each label keeps, best first.

    torchvision's operator, the one that ultralytics' own function calls; that function also stops after a time limit,
    so what it returns would depend on how busy the machine is.
    """
    from torchvision.ops import batched_nms

    kept: torch.Tensor = batched_nms(corners, scores, labels, overlap)
    return kept


def corners_of(centres: torch.Tensor) -> torch.Tensor:
    """Turn (N, 4) centre x, centre y, width, height into x1, y1, x2, y2."""
    middle, half = centres[:, :2], centres[:, 2:4] / 2
    return torch.cat((middle - half, middle + half), dim=1)
