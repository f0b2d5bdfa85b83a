"""What calibration says of one expert, and its entry in the calibration file that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coe.board.board_spec import StatedScores
from coe.board.calibration_file import CalibratedExpert, CalibrationOrigin, CountedRate
from coe.board.scores import honest
from coe.core import NOTHING
from coe.helpers import versions
from coe.helpers.rates import Rate, trials_needed
from coe.learn.answers import ExpertAnswers
from coe.learn.temperature import Honesty, ScoredAnswers, fitted
from coe.learn.thresholds import DIGITS, Curve, Goal, ThresholdChoice, Use, WantedRate, choose, curve_of


@dataclass(frozen=True, slots=True)
class ExpertCalibration:
    """One expert: its answers, its honesty (None with too few answers), its curve, and the point that was chosen.

    The curve is None if no label can have a threshold, the choice if no picture tells the wanted rate. A choice that is
    not proven is written only with `unproven`.
    """

    answers: ExpertAnswers
    honesty: Honesty | None
    curve: Curve | None
    choice: ThresholdChoice | None
    wanted: WantedRate
    unproven: bool = False

    @property
    def written(self) -> ThresholdChoice | None:
        """The choice that is written."""
        return self.choice if self.choice is not None and (self.choice.proven or self.unproven) else None

    @property
    def temperature(self) -> float:
        """The temperature of its scores."""
        return self.honesty.temperature if self.honesty else 1.0

    def scores(self, before: StatedScores) -> StatedScores:
        """Return the scores of the expert from now on.

        Where no threshold is written, those of before stay, on the scale of the new scores: else a picture that went to
        REVIEW would pass. Rounding makes them no less strict. Where one is written, boxes that had been ignored and
        that the pictures do not show count again, as they were counted here.
        """
        expert = self.answers.expert
        review = self._rescaled(before, before.min_scores, math.ceil)
        ignore = self._rescaled(before, before.ignore_under, math.floor)
        if self.written is not None and self.curve is not None:
            threshold = self.written.point.threshold
            chosen = dict.fromkeys(self.curve.labels, threshold)
            if self.curve.use is Use.REVIEW_UNDER:
                review |= chosen
            else:
                ignore = {label: score for label, score in ignore.items() if label not in expert.reject} | chosen
                if len(expert.labels) == 1:
                    review[NOTHING] = round(1 - threshold, DIGITS)
        return StatedScores(temperature=self.temperature, min_scores=review, ignore_under=ignore)

    def _rescaled(
        self, before: StatedScores, scores: Mapping[str, float], rounded: Callable[[float], float]
    ) -> dict[str, float]:
        """Return scores of before on the scale of this temperature. A temperature of 1 / T undoes one of T."""
        if before.temperature == self.temperature:
            return dict(scores)
        raw = {label: honest(score, 1 / before.temperature) for label, score in scores.items()}
        grid = 10**DIGITS
        return {label: rounded(honest(score, self.temperature) * grid) / grid for label, score in raw.items()}

    def entry(self, before: StatedScores, stated: StatedScores, date: str) -> CalibratedExpert:
        """Return the expert's entry in the calibration file.

        `before` are its scores until now, `stated` those of its entry in the board file.
        """
        return CalibratedExpert(**dict(self.scores(before)), stated=stated, origin=self._origin(date))

    def _origin(self, date: str) -> CalibrationOrigin:
        answers, choice, honesty, written = self.answers, self.choice, self.honesty, self.written

        def counted(rate: Rate | None) -> CountedRate | None:
            if rate is None:
                return None
            return CountedRate(
                events=rate.events, trials=rate.trials, at_most=round(rate.upper(self.wanted.confidence), DIGITS)
            )

        return CalibrationOrigin(
            date=date,
            version=versions.own(),
            weights=answers.weights,
            pictures=len(answers.answers),
            not_compared=len(answers.doubtful),
            pictures_sha256=answers.pictures_sha256,
            wanted={self.wanted.goal.value: self.wanted.rate},
            confidence=self.wanted.confidence,
            proven=choice is not None and choice.proven,
            threshold=written.point.threshold if written is not None else None,
            escapes=counted(choice.point.escapes) if choice is not None else None,
            false_calls=counted(choice.point.false_calls) if choice is not None else None,
            ece_before=round(honesty.before, 4) if honesty is not None else None,
            ece_after=round(honesty.after, 4) if honesty is not None else None,
        )


def calibrate(answers: ExpertAnswers, wanted: WantedRate, *, unproven: bool = False) -> ExpertCalibration:
    """Return the temperature and the threshold of an expert."""
    honesty = fitted(ScoredAnswers.of(answers.answers))
    temperature = honesty.temperature if honesty else 1.0
    curve = curve_of(answers, temperature, wanted.goal)
    choice = choose(curve, answers, temperature, wanted) if curve is not None else None
    return ExpertCalibration(answers, honesty, curve, choice, wanted, unproven)


def _rates(choice: ThresholdChoice, wanted: WantedRate) -> str:
    """Say what a threshold shows in the pictures: "escapes 0 of 300 (at most 0.99%), false calls 3 of 400 (...)"."""
    rates = (("escapes", choice.point.escapes), ("false calls", choice.point.false_calls))
    return ", ".join(
        f"{name} {rate.events} of {rate.trials} (at most {rate.upper(wanted.confidence):.2%})"
        for name, rate in rates
        if rate is not None
    )


def _needed(choice: ThresholdChoice, wanted: WantedRate) -> str:
    """Say what would prove the wanted rate."""
    rate = choice.point.rate(wanted.goal)
    if rate is not None and rate.events:
        return "that is too many, but no threshold has fewer"
    if not wanted.rate:
        return "no number of parts proves a rate of 0"
    needed = trials_needed(wanted.rate, wanted.confidence)
    kind = "bad" if wanted.goal is Goal.ESCAPES else "good"
    return f"that needs {needed} verified {kind} parts, all judged right"


def warnings(outcome: ExpertCalibration) -> list[str]:
    """Return sentences on what the rate of an expert does not tell: labels with more escapes, labels not shown."""
    curve, choice, wanted = outcome.curve, outcome.choice, outcome.wanted
    if curve is None or choice is None:
        return []
    told = []
    if len(choice.by_label) > 1 and wanted.goal is Goal.ESCAPES:
        told = [
            f"'{label}': {rate.events} of {rate.trials} escape; the rate holds for all bad parts together, "
            "in the proportions of the pictures"
            for label, rate in choice.by_label.items()
            if rate.share > wanted.rate
        ]
    if curve.unseen:
        names = ", ".join(f"'{label}'" for label in curve.unseen)
        told.append(f"no picture shows {names}: how many of these escape is unknown")
    return told


def unreached(outcome: ExpertCalibration) -> str:
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
    told = f"{_rates(choice, wanted)}; {_needed(choice, wanted)}{way}"
    return f"no threshold is proven to keep {noun} at or below {wanted.rate:.4g}: {told}"
