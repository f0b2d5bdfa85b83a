"""What calibration says of one expert, and the entries of the rules that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coe.board.scores import honest
from coe.calibrate.answers import Answers
from coe.calibrate.honest import Honesty, calibrated
from coe.calibrate.thresholds import DIGITS, Curve, Goal, ThresholdChoice, Use, WantedRate, choose, curves
from coe.core import NOTHING
from coe.rates import trials_needed

Value = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StatedScores:
    """What an expert's entry in the rules states before a calibration."""

    temperature: float = 1.0
    min_scores: Mapping[str, float] = field(default_factory=dict)
    ignore_under: Mapping[str, float] = field(default_factory=dict)


NOTHING_STATED = StatedScores()


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One expert: its answers, its honesty (None with too few answers), its curves, and the points that were chosen."""

    answers: Answers
    honesty: Honesty | None
    curves: tuple[Curve, ...]
    choices: tuple[ThresholdChoice, ...]
    wanted: WantedRate

    @property
    def temperature(self) -> float:
        """The temperature of its scores."""
        return self.honesty.temperature if self.honesty else 1.0

    def entries(self, stated: StatedScores = NOTHING_STATED) -> dict[str, Value]:
        """Return the keys of the expert's entry in the rules with their values.

        What the rules state for a label for which no threshold was chosen stays, on the scale of the new scores: else a
        picture that went to REVIEW would pass. Rounding makes it no less strict.
        """
        review, ignore = {}, {}
        for choice in self.choices:
            label, threshold = choice.curve.label, choice.point.threshold
            if choice.curve.use is Use.REVIEW_UNDER:
                review[label] = threshold
            else:
                ignore[label] = threshold
                if self.answers.expert.labels == (label,):
                    review[NOTHING] = round(1 - threshold, DIGITS)
        review = {**self._kept(stated, stated.min_scores, math.ceil), **review}
        ignore = {**self._kept(stated, stated.ignore_under, math.floor), **ignore}
        values: dict[str, Value] = {"temperature": self.temperature, "min_scores": review, "ignore_under": ignore}
        return {key: value for key, value in values.items() if value not in (1.0, {})}

    def _kept(
        self, stated: StatedScores, scores: Mapping[str, float], rounded: Callable[[float], float]
    ) -> dict[str, float]:
        """Return scores of the rules on the scale of this temperature. A temperature of 1 / T undoes one of T."""
        if stated.temperature == self.temperature:
            return dict(scores)
        raw = {label: honest(score, 1 / stated.temperature) for label, score in scores.items()}
        grid = 10**DIGITS
        return {label: rounded(honest(score, self.temperature) * grid) / grid for label, score in raw.items()}

    def comment(self, date: str) -> str:
        """Return one line that says where the entries come from."""
        count, doubtful = len(self.answers.answers), len(self.answers.doubtful)
        others = f", and {doubtful} that could not be compared" if doubtful else ""
        parts = [f"{count} pictures{others}, on {date}" if others else f"{count} pictures on {date}"]
        parts += [sentence(choice, self.wanted) for choice in self.choices]
        if self.honesty and self.honesty.temperature != 1:
            parts.append(f"ECE {self.honesty.before:.3f} to {self.honesty.after:.3f}")
        return "; ".join(parts)


def calibrate(answers: Answers, wanted: WantedRate) -> Calibrated:
    """Return the temperature and the thresholds of an expert."""
    honesty = calibrated(answers.answers)
    all_curves = curves(answers, honesty.temperature if honesty else 1.0)
    choices = [choice for curve in all_curves if (choice := choose(curve, wanted)) is not None]
    return Calibrated(answers, honesty, tuple(all_curves), tuple(choices), wanted)


def sentence(choice: ThresholdChoice, wanted: WantedRate) -> str:
    """Say what a threshold shows in the pictures: "ok: escapes 0 of 300, at most 0.99 %; false calls 3 of 400, ..."."""
    rates = (("escapes", choice.point.escapes), ("false calls", choice.point.false_calls))
    told = ", ".join(
        f"{name} {rate.events} of {rate.trials} (at most {rate.upper(wanted.confidence):.2%})"
        for name, rate in rates
        if rate is not None
    )
    needed = trials_needed(wanted.rate, wanted.confidence) if wanted.rate else "endless"
    proof = "" if choice.proven else f", not proven: that needs {needed} parts without an event"
    return f"{choice.curve.label}: {told}{proof}"


def unreached(curve: Curve, wanted: WantedRate) -> str:
    """Say why no threshold of a curve holds the wanted rate."""
    noun = "escapes" if wanted.goal is Goal.ESCAPES else "false calls"
    rates = [rate for point in curve.points if (rate := point.rate(wanted.goal)) is not None]
    if not rates:
        needs = "a bad part" if wanted.goal is Goal.ESCAPES else "a good part"
        return f"{curve.label}: no picture shows {needs}, so {noun} cannot be counted"
    least = min(rates, key=lambda rate: rate.share)
    return f"{curve.label}: no threshold has so few {noun}; the fewest are {least.events} of {least.trials}"
