"""Honest scores: an expert that says 0.9 shall be right nine times in ten.

The temperature is that of Guo et al. (*On Calibration of Modern Neural Networks*, 2017), on the odds of the score that
is reported; what is minimised is the likelihood's negative logarithm with Platt's (1999) targets, so that an expert
that was always right in a few pictures is not believed without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coe.board.scores import honest, odds
from coe.learn.answers import LabelledFinding

BINS, FOLDS = 10, 5
LEAST_ANSWERS = 20
"""With fewer answers a temperature would say more of the pictures than of the expert."""
_LOW, _HIGH = 0.05, 20.0


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """Scores, (n,) 0 to 1, and whether the label with each was true, (n,)."""

    scores: NDArray[np.float64]
    right: NDArray[np.bool_]

    @classmethod
    def of(cls, answers: Iterable[LabelledFinding]) -> ScoredAnswers:
        """Return the scores of answers."""
        pairs = [(answer.finding.score, answer.finding.label == answer.truth) for answer in answers]
        return cls(np.array([score for score, _ in pairs], float), np.array([right for _, right in pairs], bool))

    def at(self, temperature: float) -> ScoredAnswers:
        """Return these answers with honest scores."""
        return replace(self, scores=np.array([honest(score, temperature) for score in self.scores.tolist()], float))

    def where(self, chosen: NDArray[np.bool_]) -> ScoredAnswers:
        """Return those answers for which `chosen`, (n,), is true."""
        return ScoredAnswers(self.scores[chosen], self.right[chosen])

    def binned(self) -> list[ScoredAnswers]:
        """Return the answers in ten bins of equal width, without empty bins."""
        places = np.minimum(BINS - 1, (self.scores * BINS).astype(int))
        return [self.where(places == place) for place in np.unique(places)]

    def error(self) -> float:
        """Return the expected calibration error: the mean distance of score and share of right answers, by bins."""
        return sum(float(abs(np.sum(bin.scores - bin.right))) for bin in self.binned()) / len(self.scores)


@dataclass(frozen=True, slots=True)
class Honesty:
    """A temperature, and the expected calibration errors (ECE) before and after it.

    The error after is that of pictures from which the temperature did not come: each fifth has that of the others.
    """

    temperature: float
    before: float
    after: float


def fitted(answers: ScoredAnswers) -> Honesty | None:
    """Return the temperature that makes the scores of answers honest; None if there are too few.

    It is 1 if no temperature is better on pictures on which it was not fitted.
    """
    if len(answers.scores) < LEAST_ANSWERS:
        return None
    folds, crossed = np.arange(len(answers.scores)) % FOLDS, answers.scores.copy()
    for fold in range(FOLDS):
        of_others = temperature(answers.where(folds != fold))
        crossed[folds == fold] = answers.where(folds == fold).at(of_others).scores
    before, after = answers.error(), replace(answers, scores=crossed).error()
    return Honesty(temperature(answers), before, after) if after < before else Honesty(1.0, before, before)


def temperature(answers: ScoredAnswers) -> float:
    """Return the temperature with the best likelihood, from 0.05 to 20."""
    from scipy.optimize import brentq
    from scipy.special import expit

    right = int(answers.right.sum())
    targets = np.where(answers.right, (right + 1) / (right + 2), 1 / (len(answers.right) - right + 2))
    values = np.array([odds(score) for score in answers.scores.tolist()])

    def slope(inverse: float) -> float:
        """Return the derivative of the loss, which is convex, by the inverse of the temperature."""
        return float(values @ (expit(inverse * values) - targets))

    if slope(1 / _HIGH) >= 0:
        return _HIGH
    return _LOW if slope(1 / _LOW) <= 0 else round(1 / brentq(slope, 1 / _HIGH, 1 / _LOW), 3)
