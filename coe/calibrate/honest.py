"""Honest scores: an expert that says 0.9 shall be right nine times in ten.

The temperature is that of Guo et al. (*On Calibration of Modern Neural Networks*, 2017), on the odds of the score that
is reported; what is minimised is the likelihood's negative logarithm with Platt's (1999) targets, so that an expert
that was always right in a few pictures is not believed without end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coe.board.scores import honest, odds
from coe.calibrate.answers import Answer

BINS, FOLDS = 10, 5
LEAST_ANSWERS = 20
"""With fewer answers a temperature would say more of the pictures than of the expert."""
_LOW, _HIGH = 0.05, 20.0
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Said:
    """A score, 0 to 1, and whether the label with it was true."""

    score: float
    right: bool


@dataclass(frozen=True, slots=True)
class Honesty:
    """A temperature, and the expected calibration errors (ECE) before and after it.

    The error after is that of pictures from which the temperature did not come: each fifth has that of the others.
    """

    temperature: float
    before: float
    after: float


def said(answers: Sequence[Answer]) -> list[Said]:
    """Return the score of each answer, and whether its label is the true one."""
    return [Said(answer.finding.score, answer.finding.label == answer.truth) for answer in answers]


def calibrated(answers: Sequence[Answer]) -> Honesty | None:
    """Return the temperature that makes the scores of answers honest; None if there are too few.

    It is 1 if no temperature is better on pictures on which it was not fitted.
    """
    pairs = said(answers)
    if len(pairs) < LEAST_ANSWERS:
        return None
    before, crossed = error(pairs), []
    for fold in range(FOLDS):
        others = [pair for place, pair in enumerate(pairs) if place % FOLDS != fold]
        of_others = temperature(others)
        crossed += [Said(honest(pair.score, of_others), pair.right) for pair in pairs[fold::FOLDS]]
    after = error(crossed)
    return Honesty(temperature(pairs), before, after) if after < before else Honesty(1.0, before, before)


def temperature(pairs: Sequence[Said]) -> float:
    """Return the temperature with the best likelihood, from 0.05 to 20."""
    right = sum(pair.right for pair in pairs)
    targets = {True: (right + 1) / (right + 2), False: 1 / (len(pairs) - right + 2)}
    values = [(odds(pair.score), targets[pair.right]) for pair in pairs]

    def slope(inverse: float) -> float:
        """Return the derivative of the loss, which is convex, by the inverse of the temperature."""
        return math.fsum(value * (1 / (1 + math.exp(-inverse * value)) - target) for value, target in values)

    low, high = 1 / _HIGH, 1 / _LOW
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return round(1 / high, 3)


def error(pairs: Sequence[Said]) -> float:
    """Return the expected calibration error: the mean distance of score and share of right answers, by ten bins."""
    return math.fsum(
        abs(math.fsum(pair.score - pair.right for pair in group)) / len(pairs) for group in binned(pairs) if group
    )


def binned(pairs: Sequence[Said]) -> list[list[Said]]:
    """Return the pairs in ten bins of equal width."""
    groups: list[list[Said]] = [[] for _ in range(BINS)]
    for pair in pairs:
        groups[min(BINS - 1, int(pair.score * BINS))].append(pair)
    return groups
