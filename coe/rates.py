"""Rates with the bounds that a count of trials allows (Clopper and Pearson, 1934)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
_STEPS = 60
_NEGLIGIBLE = 1e-17


@dataclass(frozen=True, slots=True)
class Rate:
    """`events` of `trials`; at least one trial."""

    events: int
    trials: int

    @property
    def share(self) -> float:
        """The observed share."""
        return self.events / self.trials

    def upper(self, confidence: float = CONFIDENCE) -> float:
        """Return the bound above which the true rate lies with a probability of 1 - `confidence` at most."""
        if self.events >= self.trials:
            return 1.0
        low, high = self.share, 1.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if _at_most(self.events, self.trials, middle) > 1 - confidence else (low, middle)
        return high

    def lower(self, confidence: float = CONFIDENCE) -> float:
        """Return the bound under which the true rate lies with a probability of 1 - `confidence` at most."""
        return 1 - Rate(self.trials - self.events, self.trials).upper(confidence)

    def __str__(self) -> str:
        """Say the count, and the one-sided bound above the true rate."""
        return f"{self.events} of {self.trials}, at most {self.upper():.2%}"


def trials_needed(rate: float, confidence: float = CONFIDENCE) -> int:
    """Return the least number of trials that prove a rate above 0 without any event."""
    return max(1, math.ceil(math.log(1 - confidence) / math.log1p(-rate))) if rate < 1 else 1


def _at_most(events: int, trials: int, rate: float) -> float:
    """Return the probability of at most so many events, `events` < `trials`, for a rate in 0..1 above their share."""
    if rate >= 1:
        return 0.0
    if rate <= 0:
        return 1.0

    ways = math.lgamma(trials + 1) - math.lgamma(events + 1) - math.lgamma(trials - events + 1)
    mass = total = math.exp(ways + events * math.log(rate) + (trials - events) * math.log1p(-rate))
    # Each mass follows from the next larger number's. Above the observed share they only become smaller, so the sum
    # ends early: a bound for millions of trials takes as long as its deviation is wide.
    for number in range(events, 0, -1):
        mass *= number / (trials - number + 1) * (1 - rate) / rate
        total += mass
        if number < rate * trials and mass <= _NEGLIGIBLE * total:
            break
    return total


def tolerance_factor(count: int, share: float, confidence: float = CONFIDENCE) -> float:
    """Return how many deviations above the mean of `count` normal values at most a `share` of all values lies.

    This holds with the `confidence`, for 3 values or more; mean and deviation are those of the values. The
    approximation is Natrella's (*Experimental Statistics*, 1963, section 2-2.2); it is 1 % too low for ten values.
    """
    normal = NormalDist()
    beyond, sure = normal.inv_cdf(1 - share), normal.inv_cdf(confidence)
    a, b = 1 - sure**2 / (2 * (count - 1)), beyond**2 - sure**2 / count
    return (beyond + math.sqrt(max(0.0, beyond**2 - a * b))) / a
