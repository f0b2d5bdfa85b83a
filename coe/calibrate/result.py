"""What calibration says of one expert, and the entries of the rules that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coe.calibrate.answers import Answers
from coe.calibrate.honest import Honesty, calibrated
from coe.calibrate.thresholds import Choice, Curve, Goal, Use, Wanted, choose, curves
from coe.core import NOTHING
from coe.rates import trials_needed

Value = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One expert: its answers, its honesty (None with too few answers), its curves, and the points that were chosen."""

    answers: Answers
    honesty: Honesty | None
    curves: tuple[Curve, ...]
    choices: tuple[Choice, ...]
    wanted: Wanted

    @property
    def temperature(self) -> float:
        """The temperature of its scores."""
        return self.honesty.temperature if self.honesty else 1.0

    @property
    def entries(self) -> dict[str, Value]:
        """The keys of the expert's entry in the rules with their values."""
        review, ignore = {}, {}
        for choice in self.choices:
            label, threshold = choice.curve.label, choice.point.threshold
            if choice.curve.use is Use.REVIEW_UNDER:
                review[label] = threshold
            else:
                ignore[label] = threshold
                if self.answers.expert.labels == (label,):
                    review[NOTHING] = round(1 - threshold, 7)
        values: dict[str, Value] = {"temperature": self.temperature, "min_scores": review, "ignore_under": ignore}
        return {key: value for key, value in values.items() if value not in (1.0, {})}

    def comment(self, date: str) -> str:
        """Return one line that says where the entries come from."""
        parts = [f"{len(self.answers.answers)} pictures on {date}"]
        parts += [sentence(choice, self.wanted) for choice in self.choices]
        if self.honesty and self.honesty.temperature != 1:
            parts.append(f"ECE {self.honesty.before:.3f} to {self.honesty.after:.3f}")
        return "; ".join(parts)


def calibrate(answers: Answers, wanted: Wanted) -> Calibrated:
    """Return the temperature and the thresholds of an expert."""
    honesty = calibrated(answers.answers)
    all_curves = curves(answers, honesty.temperature if honesty else 1.0)
    choices = [choice for curve in all_curves if (choice := choose(curve, wanted)) is not None]
    return Calibrated(answers, honesty, tuple(all_curves), tuple(choices), wanted)


def sentence(choice: Choice, wanted: Wanted) -> str:
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


def unreached(curve: Curve, wanted: Wanted) -> str:
    """Say why no threshold of a curve holds the wanted rate."""
    noun = "escapes" if wanted.goal is Goal.ESCAPES else "false calls"
    rates = [rate for point in curve.points if (rate := point.rate(wanted.goal)) is not None]
    if not rates:
        needs = "a bad part" if wanted.goal is Goal.ESCAPES else "a good part"
        return f"{curve.label}: no picture shows {needs}, so {noun} cannot be counted"
    least = min(rates, key=lambda rate: rate.share)
    return f"{curve.label}: no threshold has so few {noun}; the fewest are {least.events} of {least.trials}"
