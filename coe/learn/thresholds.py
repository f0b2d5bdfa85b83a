"""The threshold of an expert for a wanted rate of escapes or of false calls.

A bad part is a picture with a true label that speaks against the part. An expert has one threshold, for all labels that
can have one, because the wanted rate is that of the expert as a whole: thresholds that hold it label by label let
more pass together.

- a classifier's labels that speak for the part: under the threshold a picture goes to REVIEW (`min_scores`), so a
  higher threshold has fewer escapes and more false calls;
- a detector's labels that speak against the part: a box under the threshold does not count (`ignore_under`), so a
  higher threshold has more escapes and fewer false calls. If the detector has no other label, its `none` tells how near
  it was to the label; what is over the threshold then goes to REVIEW, although it is no box (`min_scores` of `none`).

So every picture has one score, and every threshold is one place among these scores. The thresholds are proved one after
another, the safest first, until one does not hold the rate (fixed-sequence testing, as in learn then test: Angelopoulos
et al., 2021). Each bound is that of Clopper and Pearson; at a threshold just beyond a score it is that of the order
statistic (Wilks, 1941): it holds although the threshold was chosen on the same pictures. A larger wanted rate only adds
thresholds at the end of the sequence, so it never gives a lower bound than a smaller one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import pairwise, takewhile
from math import inf

from coe.board.scores import honest
from coe.core import NOTHING, Finding
from coe.helpers.rates import CONFIDENCE, Rate
from coe.learn.answers import ExpertAnswers

DIGITS = 7
"""The decimals of a threshold in the rules; scores in 32 bits hardly have more."""
_APART = 1e-9


class Use(Enum):
    """What a threshold does in the rules."""

    REVIEW_UNDER = auto()
    IGNORE_UNDER = auto()


class Goal(StrEnum):
    """Which rate is wanted."""

    ESCAPES = "escapes"
    FALSE_CALLS = "false_calls"


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
    """All thresholds of an expert's labels that differ on the pictures, in rising order.

    `unseen` are labels against a part that no picture shows.
    """

    labels: tuple[str, ...]
    use: Use
    points: tuple[ThresholdPoint, ...]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """The point that was chosen; `proven` if the bound holds the wanted rate, else its bound is the least there is.

    `by_label` are the escapes at it by their true label.
    """

    point: ThresholdPoint
    proven: bool
    by_label: Mapping[str, Rate]


def curve_of(answers: ExpertAnswers, temperature: float, goal: Goal) -> Curve | None:
    """Return the curve of an expert, with honest scores; None if none of its labels can have a threshold.

    A box of a label that no picture shows counts whatever its score, if a rate of escapes is wanted: nobody knows what
    would pass without it.
    """
    expert, detects = answers.expert, answers.detects
    labels = tuple(label for label in expert.labels if (label in expert.reject) == detects)
    shown = {answer.truth for answer in answers.answers} | set(answers.doubtful.values())
    unseen = tuple(label for label in expert.labels if label in expert.reject and label not in shown)
    if detects and goal is Goal.ESCAPES:
        labels = tuple(label for label in labels if label in shown) or labels
    if not labels:
        return None
    bad, good = _bad_and_good(answers, labels, temperature)
    thresholds = _between(sorted({score for score in (*bad, *good) if -inf < score < inf}), lowest=not detects)
    points = tuple(_point(threshold, bad, good, detects) for threshold in thresholds)
    return Curve(labels, Use.IGNORE_UNDER if detects else Use.REVIEW_UNDER, points, unseen)


def point_at(answers: ExpertAnswers, curve: Curve, temperature: float, threshold: float) -> ThresholdPoint:
    """Return what the pictures show at any threshold, also at one that is not of the curve."""
    return _point(threshold, *_bad_and_good(answers, curve.labels, temperature), answers.detects)


def _bad_and_good(
    answers: ExpertAnswers, labels: Collection[str], temperature: float
) -> tuple[list[float], list[float]]:
    """Return the scores of the bad parts and of the good ones, rising."""
    found = scored(answers, labels, temperature)
    bad, good = (
        sorted(score for truth, score in found if (truth in answers.expert.reject) == is_bad)
        for is_bad in (True, False)
    )
    return bad, good


def choose(curve: Curve, answers: ExpertAnswers, temperature: float, wanted: WantedRate) -> ThresholdChoice | None:
    """Return the threshold that is proven to hold the wanted rate with the least of the other rate.

    If none is, as with too few pictures, the one with the fewest events. None without pictures that tell the rate.
    """
    counted = [(rate, point) for point in curve.points if (rate := point.rate(wanted.goal)) is not None]
    if not counted:
        return None
    # The safest first: events rise along the sequence, so what holds is a beginning of it.
    counted.sort(key=lambda pair: pair[0].events)
    holding = list(takewhile(lambda pair: pair[0].upper(wanted.confidence) <= wanted.rate, counted))
    candidates = holding or [pair for pair in counted if pair[0].events == counted[0][0].events]
    point = min((point for _, point in candidates), key=lambda point: _cost(point, wanted, curve.use))
    return ThresholdChoice(point, bool(holding), _escapes_by_label(answers, curve.labels, temperature, point.threshold))


def frontier(curve: Curve, goal: Goal) -> list[ThresholdPoint]:
    """Return the points worth a look, the safest first: for each number of events the best."""
    best: dict[int, ThresholdPoint] = {}
    wanted = WantedRate(goal, 1.0)
    for point in curve.points:
        rate = point.rate(goal)
        if rate is not None:
            before = best.get(rate.events, point)
            best[rate.events] = min(before, point, key=lambda each: _cost(each, wanted, curve.use))
    return [best[events] for events in sorted(best)]


def _cost(point: ThresholdPoint, wanted: WantedRate, use: Use) -> tuple[float, float]:
    other = point.false_calls if wanted.goal is Goal.ESCAPES else point.escapes
    # Of equal points the one that is more cautious: it lets fewer bad parts pass.
    return (other.share if other else 0.0, -point.threshold if use is Use.REVIEW_UNDER else point.threshold)


def _escapes_by_label(
    answers: ExpertAnswers, labels: Collection[str], temperature: float, threshold: float
) -> dict[str, Rate]:
    passed: dict[str, list[bool]] = {}
    for truth, score in scored(answers, labels, temperature):
        if truth in answers.expert.reject:
            passed.setdefault(truth, []).append((score >= threshold) != answers.detects)
    return {label: Rate(sum(each), len(each)) for label, each in sorted(passed.items())}


def _between(scores: Sequence[float], *, lowest: bool) -> list[float]:
    """Return thresholds on both sides of all scores and between each two, as the rules will state them."""
    # A threshold that rounding puts on a score is left out, because `none` lies on the other side of it. A detector has
    # none at 0 (`lowest`), from where everything would be called, even what is not seen at all.
    between = [(low + high) / 2 for low, high in pairwise(scores)]
    ends = [0.0] if lowest else [scores[0] / 2] if scores else []
    thresholds = dict.fromkeys(round(threshold, DIGITS) for threshold in (*ends, *between))
    apart = [t for t in thresholds if lowest or (t > 0 and not _near(t, scores))]
    return [*apart, *([1.0] if 1.0 not in apart else [])]


def _near(threshold: float, scores: Sequence[float]) -> bool:
    place = bisect_left(scores, threshold)
    return any(abs(score - threshold) < _APART for score in scores[max(0, place - 1) : place + 1])


def _point(threshold: float, bad: Sequence[float], good: Sequence[float], detects: bool) -> ThresholdPoint:
    bad_above, good_above = (len(scores) - bisect_left(scores, threshold) for scores in (bad, good))
    escapes, calls = (len(bad) - bad_above, good_above) if detects else (bad_above, len(good) - good_above)
    return ThresholdPoint(threshold, Rate(escapes, len(bad)) if bad else None, Rate(calls, len(good)) if good else None)


def scored(answers: ExpertAnswers, labels: Collection[str], temperature: float) -> list[tuple[str, float]]:
    """Return each true label with the score that is compared with a threshold, in the order of the answers.

    What could not be compared comes after them, and is called at every threshold (-inf, and inf for a detector).
    """
    called = inf if answers.detects else -inf
    told = [(answer.truth, _score(answer.finding, labels, answers, temperature)) for answer in answers.answers]
    return [*told, *((truth, called) for truth in answers.doubtful.values())]


def _score(finding: Finding, labels: Collection[str], answers: ExpertAnswers, temperature: float) -> float:
    """Return the honest score by which a finding says one of these labels."""
    # A classifier's finding of another label passes at no threshold, not even at 0. A detector that sees nothing tells
    # how near it was to its label, if it has no other. A box of another label that speaks against the part counts
    # always.
    expert = answers.expert
    if not answers.detects:
        return honest(finding.score, temperature) if finding.label in labels else -inf
    against = [box for box in finding.boxes if box.label in expert.reject]
    if NOTHING in expert.reject and len(against) == len(finding.boxes):
        return inf  # whether these count or not, the part is called
    if finding.label == NOTHING and len(expert.labels) == 1:
        return 1 - honest(finding.score, temperature)
    return max((honest(b.score, temperature) if b.label in labels else inf for b in against), default=0.0)
