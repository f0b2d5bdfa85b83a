"""First-pass yield, false calls, defects and escapes; Pareto; the control chart of calls.

What nobody looked at is no evidence of anything. First passes alone count. FPY is of boards, never of images.
docs/serve.md has the same words.

Counts of a large sample vary more than Poisson says, since lots and shifts differ. Laney (Improved control charts for
attributes, Quality Engineering 14, 2002) widens the limits by the additional variation that consecutive points show.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import fmean

from coe.helpers.rates import Rate
from coe.serve.database.hourly import BoardCount, CallCount
from coe.serve.enums import By, Outcome, RepairOutcome

CONFIDENCE = 0.95  # that the true rate lies between the bounds (Clopper and Pearson, 1934)
_EACH = 1 - (1 - CONFIDENCE) / 2
MOST_OPEN = 0.1  # if more of what people are asked is open, there is no value: what they answered first would decide it


class Unit(StrEnum):
    """The unit of a figure: a share in percent, or in millionths."""

    PERCENT = "%"
    PPM = "ppm"


FACTORS = {Unit.PERCENT: 100.0, Unit.PPM: 1e6}


@dataclass(frozen=True, slots=True)
class Figure:
    """`events` of `trials` as a value in `unit`, between `lower` and `upper`.

    `value` is None if there is none, and `missing` then says why. Of what people are `asked`, `open` is not answered
    yet: the bounds hold whatever the answers will be. They are None where events can outnumber trials.
    """

    name: str
    title: str
    unit: Unit
    definition: str
    events: int
    trials: int
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    missing: str = ""
    asked: int = 0
    open: int = 0


def figure(
    name: str,
    title: str,
    unit: Unit,
    definition: str,
    events: int,
    trials: int,
    missing: str,
    asked: AskedCount | None = None,
) -> Figure:
    """Return a rate as a figure; `missing` says why there is none, if there are no trials."""
    asked = asked or AskedCount(0, 0)
    bare = Figure(name, title, unit, definition, events, trials, missing=missing, asked=asked.all, open=asked.open)
    if trials <= 0:
        return bare
    factor = FACTORS[unit]
    if events > trials:
        return replace(bare, value=factor * events / trials, missing="")
    most = min(trials, events + asked.open)
    lower, upper = factor * Rate(events, trials).lower(_EACH), factor * Rate(most, trials).upper(_EACH)
    if asked.open > MOST_OPEN * asked.all:
        answered = f"open: {asked.open:,} of {asked.all:,}"
        return replace(bare, lower=lower, upper=upper, missing=answered)
    return replace(bare, value=factor * events / max(1, trials - asked.left_out), lower=lower, upper=upper, missing="")


@dataclass(frozen=True, slots=True)
class AskedCount:
    """What people are asked for a figure: `all`, and how much of it is `open`.

    `left_out` are those of the open ones that are trials: the value leaves them out, and the bounds do not.
    """

    all: int
    open: int
    left_out: int = 0


NO_BOARDS, NO_VERIFIED, NO_ESCAPES = "no boards", "no verified boards", "no escapes reported"
NO_ANSWERS = "no calls answered"
NO_OPPORTUNITIES, NO_REPAIRS = "no opportunities known", "no repairs"


def opportunities(boards: Sequence[BoardCount], of_recipe: Mapping[int, int]) -> int:
    """Return the opportunities of boards, of one board by recipe id; 0 if those of a recipe are unknown (0)."""
    of_each = [count.boards * of_recipe[count.recipe_id] for count in boards]
    return sum(of_each) if all(of_each) else 0


def number(calls: Sequence[CallCount], *outcomes: Outcome | None) -> int:
    """Return how many calls have one of these outcomes (none given: any)."""
    return sum(count.calls for count in calls if not outcomes or count.outcome in outcomes)


def raw_fpy(boards: Sequence[BoardCount]) -> Figure:
    """Return the share of boards without calls."""
    clean, decided = sum(count.clean for count in boards), sum(count.boards for count in boards)
    said = "boards without calls / boards decided, first passes only"
    return figure("raw_fpy", "Raw first-pass yield", Unit.PERCENT, said, clean, decided, NO_BOARDS)


def final_fpy(boards: Sequence[BoardCount]) -> Figure:
    """Return the share of fully verified boards on which nobody confirmed a defect."""
    good, decided = sum(count.good for count in boards), sum(count.boards for count in boards)
    waiting = decided - sum(count.verified for count in boards)
    trials, asked = decided if waiting < decided else 0, AskedCount(decided, waiting, waiting)
    said = "boards without confirmed defects / boards fully verified, first passes only"
    return figure("final_fpy", "Final first-pass yield", Unit.PERCENT, said, good, trials, NO_VERIFIED, asked)


def false_calls(calls: Sequence[CallCount], opportunities: int) -> Figure:
    """Return the false calls by opportunity."""
    said = "calls that a person answered as good"
    return _by_opportunity("false_call_ppm", "False calls", said, Outcome.FALSE_CALL, calls, opportunities)


def defects(calls: Sequence[CallCount], opportunities: int) -> Figure:
    """Return the confirmed defects by opportunity."""
    name, said = "Defects per million opportunities", "defects that a person confirmed"
    return _by_opportunity("dpmo", name, said, Outcome.CONFIRMED, calls, opportunities)


def _by_opportunity(
    key: str, name: str, counted: str, outcome: Outcome, calls: Sequence[CallCount], opportunities: int
) -> Figure:
    said = f"1,000,000 x {counted} / opportunities; opportunities = components + terminations"
    trials, missing = (0, NO_ANSWERS) if _unanswered(calls) else (opportunities, NO_OPPORTUNITIES)
    return figure(key, name, Unit.PPM, said, number(calls, outcome), trials, missing, _asked(calls))


def escape_rate(calls: Sequence[CallCount], escapes: int) -> Figure:
    """Return the reported escapes by known defect. Without reports nobody knows whether somebody looked: no value."""
    known = escapes + number(calls, Outcome.CONFIRMED) if escapes else 0
    said = "escapes that later tests reported / (those escapes + confirmed defects)"
    return figure("escape_rate", "Escapes", Unit.PERCENT, said, escapes, known, NO_ESCAPES)


def _asked(calls: Sequence[CallCount]) -> AskedCount:
    return AskedCount(number(calls), number(calls, None))


def _unanswered(calls: Sequence[CallCount]) -> bool:
    """Return whether there are calls, and people have answered none: a count of 0 would then mean nothing."""
    return number(calls, None) > 0 and not number(calls, *Outcome)


def repair(outcome: RepairOutcome, title: str, repairs: Mapping[RepairOutcome, int]) -> Figure:
    """Return the share of the defects that came to repair of which a person there said this."""
    name, said_of = f"repair_{outcome.name.lower()}", sum(repairs.values())
    said = f"confirmed defects with the outcome '{outcome}' at repair / those with an outcome, all passes"
    return figure(name, title, Unit.PERCENT, said, repairs.get(outcome, 0), said_of, NO_REPAIRS)


def figures(
    boards: Sequence[BoardCount],
    calls: Sequence[CallCount],
    escapes: int,
    of_recipe: Mapping[int, int],
    repairs: Mapping[RepairOutcome, int],
) -> list[Figure]:
    """Return all figures, in the order in which they are shown."""
    total = opportunities(boards, of_recipe)
    return [
        raw_fpy(boards),
        final_fpy(boards),
        false_calls(calls, total),
        defects(calls, total),
        escape_rate(calls, escapes),
        repair(RepairOutcome.SCRAPPED, "Scrapped at repair", repairs),
        repair(RepairOutcome.NO_DEFECT, "No defect found at repair", repairs),
    ]


PARETO_DEFINITION = (
    "calls of first passes by {by}, the most frequent first; cumulative = share of calls in this row and those above"
)
U_DEFINITION = (
    "calls per opportunity of each hour; mean = all calls / all opportunities; limits = mean +- 3 x sqrt(mean / "
    "opportunities of the hour) x sigma_z, sigma_z = mean of |z(i) - z(i-1)| / 1.128 (Laney's u' chart)"
)
WIDTH = 3.0  # how many deviations the limits of the chart are away
LEAST_POINTS = 8  # with fewer points than this, the deviation is a guess
_D2 = 1.128  # the mean range of two normal values, in deviations
_ROUNDED = 1e-12  # rates that differ by this share alone are the same rate, rounded


@dataclass(frozen=True, slots=True)
class Bar:
    """The calls of a component, expert, label or place by what people said; `cumulative` is a share in 0..1."""

    name: str
    calls: int
    confirmed: int
    false_calls: int
    accepted: int
    open: int
    cumulative: float


def pareto(calls: Sequence[CallCount], by: By) -> list[Bar]:
    """Return the bars, the most calls first; bars of one size in the order of their names."""
    counts: dict[str, dict[Outcome | None, int]] = defaultdict(lambda: defaultdict(int))
    for count in calls:
        counts[by.of(count)][count.outcome] += count.calls
    total = sum(sum(outcomes.values()) for outcomes in counts.values())
    bars, so_far = [], 0
    for name, outcomes in sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        number = sum(outcomes.values())
        so_far += number
        confirmed, false, accepted = (outcomes[one] for one in Outcome)
        bars.append(Bar(name, number, confirmed, false, accepted, outcomes[None], so_far / total))
    return bars


@dataclass(frozen=True, slots=True)
class Subgroup:
    """What was counted in an hour: `amount` calls in `size` opportunities."""

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

    mean: float
    sigma_z: float
    points: tuple[ChartPoint, ...]
    missing: str = ""


def u_chart(subgroups: Sequence[Subgroup]) -> Chart:
    """Return Laney's u' chart of counts; subgroups without size are left out."""
    used = [subgroup for subgroup in subgroups if subgroup.size > 0]
    if len(used) < LEAST_POINTS:
        return Chart(0.0, 1.0, (), f"hours with boards: {len(used)}; limits need {LEAST_POINTS}")
    mean = math.fsum(subgroup.amount for subgroup in used) / sum(subgroup.size for subgroup in used)
    deviations = [math.sqrt(mean / subgroup.size) for subgroup in used]
    sigma_z = _sigma_z([subgroup.amount / subgroup.size - mean for subgroup in used], deviations)
    points = []
    for subgroup, deviation in zip(used, deviations, strict=True):
        away = max(WIDTH * deviation * sigma_z, mean * _ROUNDED)
        value = subgroup.amount / subgroup.size
        points.append(ChartPoint(subgroup.at_us, value, max(0.0, mean - away), mean + away, subgroup.size))
    return Chart(mean, sigma_z, tuple(points))


def _sigma_z(distances: Sequence[float], deviations: Sequence[float]) -> float:
    """Return how much more the points vary than their deviations say, by the mean range of neighbours."""
    z = [distance / deviation if deviation else 0.0 for distance, deviation in zip(distances, deviations, strict=True)]
    return fmean(abs(after - before) for before, after in pairwise(z)) / _D2
