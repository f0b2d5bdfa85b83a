"""Scores as the rules want them: made honest by an expert's temperature, and without boxes that do not count.

What a kind says is changed here alone, and in the same way for every kind.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coe.core import NOTHING, Box, Expert, Finding
from coe.errors import CoeError

_LEAST = 1e-7
"""A score nearer to 0 or 1 than this is that of a number in 32 bits that cannot come nearer."""


def odds(score: float) -> float:
    """Return the logarithm of a score's odds; scores of 0 and 1 count as nearly 0 and 1."""
    score = min(max(score, _LEAST), 1 - _LEAST)
    return math.log(score) - math.log1p(-score)


def margin_between(score: float, least: float) -> float:
    """Return how far a score is from the least that counts, as a margin, 0 to 1; 1 if every score counts.

    The push of log-odds that moves a margin of so much to 0 moves the score to `least`.
    """
    return math.tanh(abs(odds(score) - odds(least)) / 2) if least > 0 else 1.0


def honest(score: float, temperature: float) -> float:
    """Return a score, 0 to 1, whose odds are divided by a temperature (Guo et al., 2017) on the scale of logarithms.

    For an expert with two labels this is the softmax of its logits over the temperature; for others it needs no logits.
    """
    if temperature == 1 or not math.isfinite(score):
        return score
    return 1 / (1 + math.exp(-odds(score) / temperature))


def adjusted(finding: Finding, expert: Expert) -> Finding:
    """Return a finding with honest scores, without boxes whose score lies under that of `expert.ignore_under`.

    If no box is left, it says `none`, with a score of 1 minus the best score that did not count. The margin, on the
    scale of the kind, is at most the distance to a score from which a box counts. Raises CoeError for a finding without
    boxes of an expert for which the rules ignore boxes: nothing could be ignored there.
    """
    if expert.ignore_under and not finding.boxes and finding.label != NOTHING:
        raise CoeError(f"expert '{expert.id}' gives no boxes, so `ignore_under` has no effect; remove it")
    boxes = [replace(box, score=honest(box.score, expert.temperature)) for box in finding.boxes]
    kept = [box for box in boxes if not box.score < expert.ignore_under.get(box.label, 0.0)]
    label, score = finding.label, honest(finding.score, expert.temperature)
    if len(kept) < len(boxes):
        label, score = _decisive(kept, boxes, expert)
    margin = min([finding.margin, *_distances(finding, expert)])
    return replace(finding, label=label, score=score, boxes=tuple(kept), margin=margin)


def _decisive(kept: list[Box], boxes: list[Box], expert: Expert) -> tuple[str, float]:
    """Return label and score of the best box that speaks against the part, else of the best box, else of none."""
    against = [box for box in kept if box.label in expert.reject]
    best = max(against or kept, key=lambda box: box.score, default=None)
    return (NOTHING, 1 - max(box.score for box in boxes)) if best is None else (best.label, best.score)


def _distances(finding: Finding, expert: Expert) -> list[float]:
    """Return how far the best box of each label lies from the score from which it counts, on the scale of the kind."""
    best: dict[str, float] = {}
    for box in finding.boxes:
        best[box.label] = max(best.get(box.label, 0.0), box.score)
    # A temperature of 1 / T undoes a temperature of T.
    counts = {label: honest(score, 1 / expert.temperature) for label, score in expert.ignore_under.items()}
    return [abs(score - counts[label]) for label, score in best.items() if label in counts]
