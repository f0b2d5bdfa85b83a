"""A figure as people and programs read it. Law: no figure without its definition, no rate without its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coe.rates import Rate

CONFIDENCE = 0.95
"""The true rate lies between the bounds of a figure with this probability at least (Clopper and Pearson, 1934)."""
_EACH = 1 - (1 - CONFIDENCE) / 2


class Unit(StrEnum):
    """The unit of a figure: a share in percent, or in millionths."""

    PERCENT = "%"
    PPM = "ppm"


FACTORS = {Unit.PERCENT: 100.0, Unit.PPM: 1e6}


@dataclass(frozen=True, slots=True)
class Figure:
    """`events` of `trials` as a value in `unit`, between `lower` and `upper`.

    `value` is None if there is none, and `missing` then says why. The bounds are None where events can outnumber
    trials.
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


def figure(name: str, title: str, unit: Unit, definition: str, events: int, trials: int, missing: str) -> Figure:
    """Return a rate as a figure; `missing` says why there is none, if there are no trials."""
    if trials <= 0:
        return Figure(name, title, unit, definition, events, trials, missing=missing)
    factor = FACTORS[unit]
    value = factor * events / trials
    if events > trials:
        return Figure(name, title, unit, definition, events, trials, value)
    rate = Rate(events, trials)
    lower, upper = factor * rate.lower(_EACH), factor * rate.upper(_EACH)
    return Figure(name, title, unit, definition, events, trials, value, lower, upper)
