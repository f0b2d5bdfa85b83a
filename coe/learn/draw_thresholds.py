"""Draws what calibration says of one expert: escapes against false calls by label, and scores before and after."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from coe.helpers.rates import CONFIDENCE, Rate
from coe.learn.calibration import ExpertCalibration
from coe.learn.temperature import ScoredAnswers
from coe.learn.thresholds import Curve, ThresholdChoice
from coe.results.plots import FAINT, GREY, INK, LINES, MARKS, SMALL, head, note, nothing, save, sheet, tidy


@rc_context({"text.parse_math": False})  # names may hold dollars
def draw(calibrated: ExpertCalibration, path: Path, command: str | None = None) -> Path:
    """Draw one expert as PNG; raises ConfigError if it cannot be written."""
    figure = sheet((10.5, 4.9), command)
    head(figure, f"Calibration of {calibrated.answers.expert.id}, {len(calibrated.answers.answers)} pictures")
    left, right = figure.subplots(1, 2)
    _rates(left, calibrated)
    _scores(right, calibrated)
    return save(figure, path)


def _rates(axes: Axes, calibrated: ExpertCalibration) -> None:
    tidy(axes, title="Escapes and false calls by threshold", x="false calls, of good parts", y="escapes, of bad parts")
    curve = calibrated.curve
    if curve is None or not _curve(axes, curve, calibrated.choice, calibrated.wanted.confidence):
        nothing(axes, "no label has pictures of good parts and of bad parts")
        return
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    note(axes, [f"cross: the chosen threshold, with bounds of {calibrated.wanted.confidence:.0%} confidence each"])
    axes.legend(loc="upper right", fontsize=SMALL, frameon=False)


def _curve(axes: Axes, curve: Curve, choice: ThresholdChoice | None, confidence: float) -> bool:
    """Draw the curve; return whether there is anything to draw."""
    pairs = [
        (point.false_calls.share, point.escapes.share)
        for point in curve.points
        if point.false_calls is not None and point.escapes is not None
    ]
    if not pairs:
        return False
    colour = LINES[0]
    proof = "" if choice is None or choice.proven else ", not proven"
    label = ", ".join(curve.labels) + (f" from {choice.point.threshold:g}{proof}" if choice else "")
    xs, ys = zip(*sorted(pairs, key=lambda pair: (pair[0], -pair[1])), strict=True)
    mark = MARKS[0] if len(pairs) < 30 else None
    axes.step(xs, ys, where="post", color=colour, linewidth=1.6, marker=mark, markersize=3, label=label)
    if choice and choice.point.false_calls and choice.point.escapes:
        x, y = choice.point.false_calls, choice.point.escapes
        axes.errorbar(
            x.share, y.share, xerr=_reach(x, confidence), yerr=_reach(y, confidence), color=colour, marker="x",
            markersize=7, capsize=3, linewidth=1.2, zorder=4,
        )  # fmt: skip
    return True


def _reach(rate: Rate, confidence: float) -> list[list[float]]:
    return [[max(0.0, rate.share - rate.lower(confidence))], [max(0.0, rate.upper(confidence) - rate.share)]]


def _scores(axes: Axes, calibrated: ExpertCalibration) -> None:
    tidy(axes, title="Are the scores honest?", x="score", y="share of right answers")
    if calibrated.honesty is None:
        nothing(axes, "too few pictures to tell")
        return
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, zorder=1)
    honesty, answers = calibrated.honesty, ScoredAnswers.of(calibrated.answers.answers)
    _reliability(axes, answers, GREY, "o", f"before, ECE {honesty.before:.3f}")
    if honesty.temperature != 1:
        label = f"at temperature {honesty.temperature:g}, ECE {honesty.after:.3f}"
        _reliability(axes, answers.at(honesty.temperature), LINES[0], "s", label)
    else:
        note(axes, ["no temperature improves them"])
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.05)
    axes.legend(loc="lower left", fontsize=SMALL, frameon=False)


def _reliability(axes: Axes, answers: ScoredAnswers, colour: str, mark: str, label: str) -> None:
    """Draw each bin at its mean score, with the bounds of its share; the number of pictures stands beside it."""
    groups = answers.binned()
    xs = [float(group.scores.mean()) for group in groups]
    rates = [Rate(int(group.right.sum()), len(group.right)) for group in groups]
    low, high = ([_reach(rate, CONFIDENCE)[side][0] for rate in rates] for side in (0, 1))
    axes.errorbar(
        xs, [rate.share for rate in rates], yerr=[low, high], color=colour, marker=mark, markersize=4.5, capsize=2,
        linewidth=1.3, label=label,
    )  # fmt: skip
    if mark == "o":
        for x, rate in zip(xs, rates, strict=True):
            axes.annotate(
                str(rate.trials), (x, rate.share), (4, -9), textcoords="offset points", fontsize=SMALL, color=INK
            )
