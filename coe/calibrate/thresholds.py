"""The threshold of a label for a wanted rate of escapes or of false calls.

A bad part is a picture with a true label that speaks against the part. Two kinds of labels have a threshold:

- a classifier's label that speaks for the part: under its threshold a picture goes to REVIEW (`min_scores`), so a
  higher threshold has fewer escapes and more false calls;
- a detector's label that speaks against the part: a box under its threshold does not count (`ignore_under`), so a
  higher threshold has more escapes and fewer false calls. If the detector has no other label, its `none` tells how near
  it was to the label; what is over the threshold then goes to REVIEW, although it is no box (`min_scores` of `none`).

The bound of Clopper and Pearson at a threshold just beyond a score of the pictures is that of the order statistic
(Wilks, 1941): it holds although the threshold was chosen on the same pictures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

from coe.board.scores import honest
from coe.calibrate.answers import Answers
from coe.core import NOTHING, Finding
from coe.rates import CONFIDENCE, Rate

DIGITS = 7
"""The decimals of a threshold in the rules; scores in 32 bits hardly have more."""
_APART = 1e-9


class Use(Enum):
    """What a threshold does in the rules."""

    REVIEW_UNDER = auto()
    IGNORE_UNDER = auto()


class Goal(Enum):
    """Which rate is wanted."""

    ESCAPES = auto()
    FALSE_CALLS = auto()


@dataclass(frozen=True, slots=True)
class WantedRate:
    """The rate that is wanted, 0 to 1, and the confidence with which it must hold."""

    goal: Goal
    rate: float
    confidence: float = CONFIDENCE


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """A threshold, and what the pictures show at it; a rate is None without pictures that tell it."""

    threshold: float
    escapes: Rate | None
    false_calls: Rate | None

    def rate(self, goal: Goal) -> Rate | None:
        """Return the rate of a goal."""
        return self.escapes if goal is Goal.ESCAPES else self.false_calls


@dataclass(frozen=True, slots=True)
class Curve:
    """All thresholds of a label that differ on the pictures, in rising order."""

    label: str
    use: Use
    points: tuple[ThresholdPoint, ...]


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """The point that was chosen for a label; `proven` if the bound holds the wanted rate, else only the share does."""

    curve: Curve
    point: ThresholdPoint
    proven: bool


def curves(answers: Answers, temperature: float) -> list[Curve]:
    """Return the curve of each label that has a threshold, with honest scores."""
    expert, detects = answers.expert, answers.detects
    return [_curve(answers, label, temperature) for label in expert.labels if (label in expert.reject) == detects]


def choose(curve: Curve, wanted: WantedRate) -> ThresholdChoice | None:
    """Return the threshold that holds the wanted rate with the least of the other rate; None if no threshold holds it.

    If the pictures are too few to prove the rate, the share in the pictures must hold it.
    """
    for proven in (True, False):
        holding = [point for point in curve.points if _holds(point, wanted, proven)]
        if holding:
            return ThresholdChoice(curve, min(holding, key=lambda point: _cost(point, wanted, curve.use)), proven)
    return None


def _holds(point: ThresholdPoint, wanted: WantedRate, proven: bool) -> bool:
    rate = point.rate(wanted.goal)
    if rate is None or rate.share > wanted.rate:
        return False
    return not proven or rate.upper(wanted.confidence) <= wanted.rate


def _cost(point: ThresholdPoint, wanted: WantedRate, use: Use) -> tuple[float, float]:
    other = point.false_calls if wanted.goal is Goal.ESCAPES else point.escapes
    # Of equal points the one that is more cautious: it lets fewer bad parts pass.
    return (other.share if other else 0.0, -point.threshold if use is Use.REVIEW_UNDER else point.threshold)


def _curve(answers: Answers, label: str, temperature: float) -> Curve:
    detects, reject = answers.detects, answers.expert.reject
    scored = [(_score(answer.finding, label, answers, temperature), answer.truth) for answer in answers.answers]

    def is_bad(truth: str) -> bool:
        return truth == label if detects else truth in reject

    def is_good(truth: str) -> bool:
        return truth not in reject if detects else truth == label

    bad = sorted(score for score, truth in scored if is_bad(truth))
    good = sorted(score for score, truth in scored if is_good(truth))
    in_doubt = _InDoubt(sum(map(is_bad, answers.doubtful)), sum(map(is_good, answers.doubtful)))
    thresholds = _between(sorted({score for score, _ in scored}), lowest=not detects)
    points = tuple(_point(threshold, bad, good, detects, in_doubt) for threshold in thresholds)
    return Curve(label, Use.IGNORE_UNDER if detects else Use.REVIEW_UNDER, points)


def _between(scores: Sequence[float], *, lowest: bool) -> list[float]:
    """Return thresholds on both sides of all scores and between each two, as the rules will state them.

    A threshold that rounding puts on a score is left out, because `none` lies on the other side of it. A detector has
    none at 0 (`lowest`), from where everything would be called, even what is not seen at all.
    """
    between = [(low + high) / 2 for low, high in pairwise(scores)]
    ends = [0.0] if lowest else [scores[0] / 2] if scores else []
    thresholds = dict.fromkeys(round(threshold, DIGITS) for threshold in (*ends, *between))
    apart = [t for t in thresholds if lowest or (t > 0 and not _near(t, scores))]
    return [*apart, *([1.0] if 1.0 not in apart else [])]


def _near(threshold: float, scores: Sequence[float]) -> bool:
    place = bisect_left(scores, threshold)
    return any(abs(score - threshold) < _APART for score in scores[max(0, place - 1) : place + 1])


@dataclass(frozen=True, slots=True)
class _InDoubt:
    """How many bad and good parts could not be compared. A line calls them whatever the threshold is."""

    bad: int
    good: int


def _point(
    threshold: float, bad: Sequence[float], good: Sequence[float], detects: bool, in_doubt: _InDoubt
) -> ThresholdPoint:
    bad_above, good_above = (len(scores) - bisect_left(scores, threshold) for scores in (bad, good))
    escapes, calls = (len(bad) - bad_above, good_above) if detects else (bad_above, len(good) - good_above)
    all_bad, all_good = len(bad) + in_doubt.bad, len(good) + in_doubt.good
    return ThresholdPoint(
        threshold,
        Rate(escapes, all_bad) if all_bad else None,
        Rate(calls + in_doubt.good, all_good) if all_good else None,
    )


def _score(finding: Finding, label: str, answers: Answers, temperature: float) -> float:
    """Return the honest score with which a finding says a label; 0 if it does not.

    A detector that sees nothing tells how near it was to its label, if it has no other.
    """
    if not answers.detects:
        return honest(finding.score, temperature) if finding.label == label else 0.0
    if finding.label == NOTHING and answers.expert.labels == (label,):
        return 1 - honest(finding.score, temperature)
    return max((honest(box.score, temperature) for box in finding.boxes if box.label == label), default=0.0)
