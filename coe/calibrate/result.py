"""What calibration says of one expert, and the entries of the rules that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coe.board.scores import honest
from coe.calibrate.answers import Answers
from coe.calibrate.honest import Honesty, calibrated
from coe.calibrate.thresholds import DIGITS, Curve, Goal, ThresholdChoice, Use, WantedRate, choose, curve_of
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
    """One expert: its answers, its honesty (None with too few answers), its curve, and the point that was chosen.

    The curve is None if no label can have a threshold, the choice if no picture tells the wanted rate. A choice that is
    not proven is written only if `unproven` says so.
    """

    answers: Answers
    honesty: Honesty | None
    curve: Curve | None
    choice: ThresholdChoice | None
    wanted: WantedRate
    unproven: bool = False

    @property
    def written(self) -> ThresholdChoice | None:
        """The choice that the entries state."""
        return self.choice if self.choice is not None and (self.choice.proven or self.unproven) else None

    @property
    def temperature(self) -> float:
        """The temperature of its scores."""
        return self.honesty.temperature if self.honesty else 1.0

    def entries(self, stated: StatedScores = NOTHING_STATED) -> dict[str, Value]:
        """Return the keys of the expert's entry in the rules with their values.

        Where no threshold is written, what the rules state stays, on the scale of the new scores: else a picture that
        went to REVIEW would pass. Rounding makes it no less strict. Where one is written, boxes that the rules had
        ignored and that the pictures do not show count again, as they were counted here.
        """
        expert = self.answers.expert
        review = self._kept(stated, stated.min_scores, math.ceil)
        ignore = self._kept(stated, stated.ignore_under, math.floor)
        if self.written is not None and self.curve is not None:
            threshold = self.written.point.threshold
            chosen = dict.fromkeys(self.curve.labels, threshold)
            if self.curve.use is Use.REVIEW_UNDER:
                review |= chosen
            else:
                ignore = {label: score for label, score in ignore.items() if label not in expert.reject} | chosen
                if len(expert.labels) == 1:
                    review[NOTHING] = round(1 - threshold, DIGITS)
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
        if self.choice is not None:
            told = sentence(self.choice, self.wanted)
            parts.append(told if self.written is not None else f"{told}; so no threshold was written")
        if self.honesty and self.honesty.temperature != 1:
            parts.append(f"ECE {self.honesty.before:.3f} to {self.honesty.after:.3f}")
        return "; ".join(parts)


def calibrate(answers: Answers, wanted: WantedRate, *, unproven: bool = False) -> Calibrated:
    """Return the temperature and the threshold of an expert."""
    honesty = calibrated(answers.answers)
    temperature = honesty.temperature if honesty else 1.0
    curve = curve_of(answers, temperature, wanted.goal)
    choice = choose(curve, answers, temperature, wanted) if curve is not None else None
    return Calibrated(answers, honesty, curve, choice, wanted, unproven)


def sentence(choice: ThresholdChoice, wanted: WantedRate) -> str:
    """Say what a threshold shows in the pictures: "escapes 0 of 300 (at most 0.99%), false calls 3 of 400 (...)"."""
    rates = (("escapes", choice.point.escapes), ("false calls", choice.point.false_calls))
    told = ", ".join(
        f"{name} {rate.events} of {rate.trials} (at most {rate.upper(wanted.confidence):.2%})"
        for name, rate in rates
        if rate is not None
    )
    return told if choice.proven else f"{told}, not proven: {_needed(choice, wanted)}"


def _needed(choice: ThresholdChoice, wanted: WantedRate) -> str:
    """Say what would prove the wanted rate."""
    rate = choice.point.rate(wanted.goal)
    if rate is not None and rate.events:
        return "no threshold has fewer, and that is too many"
    needed = trials_needed(wanted.rate, wanted.confidence) if wanted.rate else "endless"
    return f"that needs {needed} parts without an event"


def warnings(outcome: Calibrated) -> list[str]:
    """Return sentences on what the rate of an expert does not tell: labels with more escapes, labels not shown."""
    curve, choice, wanted = outcome.curve, outcome.choice, outcome.wanted
    if curve is None or choice is None:
        return []
    told = []
    if len(choice.by_label) > 1 and wanted.goal is Goal.ESCAPES:
        told = [
            f"of '{label}' {rate.events} of {rate.trials} escape: the rate holds for all bad parts together, as there "
            "are in the pictures"
            for label, rate in choice.by_label.items()
            if rate.share > wanted.rate
        ]
    if curve.unseen:
        names = ", ".join(f"'{label}'" for label in curve.unseen)
        told.append(f"no picture shows {names}: nobody knows how many of these escape")
    return told


def unreached(outcome: Calibrated) -> str:
    """Say why an expert has no threshold that is proven to hold the wanted rate; "" if it has one."""
    wanted, choice = outcome.wanted, outcome.choice
    if choice is not None and choice.proven:
        return ""
    noun = "escapes" if wanted.goal is Goal.ESCAPES else "false calls"
    if outcome.curve is None:
        return "none of its labels can have a threshold"
    if choice is None:
        needs = "a bad part" if wanted.goal is Goal.ESCAPES else "a good part"
        return f"no picture shows {needs}, so {noun} cannot be counted"
    way = "" if outcome.unproven else "; it is not written (--unproven does)"
    return f"no threshold is proven to hold {wanted.rate:.4g} of {noun}: {sentence(choice, wanted)}{way}"
