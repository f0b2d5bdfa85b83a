"""Control charts: Laney's u' of calls, and the EWMA of an expert's mean score. Too few points give no limits.

Counts of a large sample vary more than Poisson says, since lots and shifts differ. Laney (Improved control charts for
attributes, Quality Engineering 14, 2002) widens the limits by the additional variation that consecutive points show.
The EWMA is that of Roberts (Control chart tests based on geometric moving averages, Technometrics 1, 1959), for samples
of unequal size; its limits are widened in the same way.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from coe.serve.database.tables import Tally

U_DEFINITION = (
    "calls per opportunity of each hour; mean = all calls / all opportunities; limits = mean +- 3 x sqrt(mean / "
    "opportunities of the hour) x sigma_z, sigma_z = mean of |z(i) - z(i-1)| / 1.128 (Laney's u' chart)"
)
EWMA_DEFINITION = (
    "w(i) = 0.2 x mean score of the hour + 0.8 x w(i-1), from the mean of all hours; limits = that mean +- 3 x "
    "deviation of w(i) x sigma_z (exponentially weighted moving average)"
)
WEIGHT, WIDTH = 0.2, 3.0
"""The weight of the newest mean in the EWMA, and how many deviations the limits of both charts are away."""
LEAST_POINTS = 8
"""With fewer points than this, the deviation is a guess."""
_D2 = 1.128
"""The mean range of two normal values, in deviations."""
_ROUNDED = 1e-12
"""Rates that differ by this share alone are the same rate, rounded."""


@dataclass(frozen=True, slots=True)
class Subgroup:
    """What was counted in an hour: `amount` in `size` (calls in opportunities, or a sum of scores in findings)."""

    at_us: int
    amount: float
    size: int


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point of a chart with its limits; `signals` says that it lies outside of them."""

    at_us: int
    value: float
    lower: float
    upper: float
    size: int

    @property
    def signals(self) -> bool:
        """Whether the point lies outside its limits."""
        return not self.lower <= self.value <= self.upper


@dataclass(frozen=True, slots=True)
class Chart:
    """A control chart; with too few subgroups no points, and `missing`. `sigma_z` is 1 if pure chance acts."""

    name: str
    mean: float
    sigma_z: float
    points: tuple[ChartPoint, ...]
    missing: str = ""


def u_chart(name: str, subgroups: Sequence[Subgroup]) -> Chart:
    """Return Laney's u' chart of counts; subgroups without size do not count."""
    return _chart(name, subgroups, 1.0, lambda mean, _: (math.sqrt(mean), mean * _ROUNDED), lowest=0.0)


def ewma(name: str, subgroups: Sequence[Subgroup], square_sum: float) -> Chart:
    """Return the EWMA of means; `square_sum` is the sum of the squares of all values.

    Values of which none differs by more than the sums are rounded by are in control.
    """

    def spread_of(mean: float, size: int) -> tuple[float, float]:
        # Each addition may round by this share, and the spread is the root of a difference of two sums.
        least = math.sqrt(square_sum * sys.float_info.epsilon)
        return math.sqrt(max(0.0, square_sum / size - mean**2)), least

    return _chart(name, subgroups, WEIGHT, spread_of)


def _chart(
    name: str,
    subgroups: Sequence[Subgroup],
    weight: float,
    spread_of: Callable[[float, int], tuple[float, float]],
    lowest: float = -math.inf,
) -> Chart:
    """Return the chart of means in which the newest has this weight: a value is the mean itself with a weight of 1.

    `spread_of` a mean and its size is the deviation of one value, and how far the limits are away at least.
    """
    used = [subgroup for subgroup in subgroups if subgroup.size > 0]
    if len(used) < LEAST_POINTS:
        return Chart(name, 0.0, 1.0, (), f"{len(used)} hours with boards; limits need {LEAST_POINTS}")
    size = sum(subgroup.size for subgroup in used)
    mean = math.fsum(subgroup.amount for subgroup in used) / size
    spread, least = spread_of(mean, size)
    deviations = [spread / math.sqrt(subgroup.size) for subgroup in used]
    sigma_z = _sigma_z([subgroup.amount / subgroup.size - mean for subgroup in used], deviations)
    points, value, variance = [], mean, 0.0
    for subgroup, deviation in zip(used, deviations, strict=True):
        value = weight * subgroup.amount / subgroup.size + (1 - weight) * value
        variance = weight**2 * deviation**2 + (1 - weight) ** 2 * variance
        away = max(WIDTH * math.sqrt(variance) * sigma_z, least)
        points.append(ChartPoint(subgroup.at_us, value, max(lowest, mean - away), mean + away, subgroup.size))
    return Chart(name, mean, sigma_z, tuple(points))


def score_charts(tallies: Iterable[Tally]) -> list[Chart]:
    """Return the EWMA of the mean score of each expert, in the order of their names."""
    of_expert: dict[str, list[Tally]] = defaultdict(list)
    for tally in tallies:
        of_expert[tally.expert].append(tally)
    return [
        ewma(expert, _hours(rows), math.fsum(tally.score_square_sum for tally in rows))
        for expert, rows in sorted(of_expert.items())
    ]


def _hours(rows: Iterable[Tally]) -> list[Subgroup]:
    amounts: dict[int, float] = defaultdict(float)
    sizes: dict[int, int] = defaultdict(int)
    for tally in rows:
        amounts[tally.hour_us] += tally.score_sum
        sizes[tally.hour_us] += tally.findings
    return [Subgroup(hour, amounts[hour], sizes[hour]) for hour in sorted(amounts)]


def _sigma_z(distances: Sequence[float], deviations: Sequence[float]) -> float:
    """Return how much more the points vary than their deviations say, by the mean range of neighbours."""
    z = [distance / deviation if deviation else 0.0 for distance, deviation in zip(distances, deviations, strict=True)]
    return fmean(abs(after - before) for before, after in pairwise(z)) / _D2
