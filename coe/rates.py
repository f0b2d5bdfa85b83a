"""Rates with the bounds that a count of trials allows (Clopper and Pearson, 1934)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
_STEPS = 100
_PRECISION = 1e-15
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
        low, high, rate = self.share, 1.0, self.share
        for _ in range(_STEPS):
            tail = _at_most(self.events, self.trials, rate)
            low, high = (rate, high) if tail.total > 1 - confidence else (low, rate)
            # Newton's step towards the bound, on the logarithm of the tail; where it leads away, the middle.
            slope = (self.trials - self.events) * tail.last / (1 - rate)
            guess = rate + math.log(tail.total / (1 - confidence)) * tail.total / slope if slope and tail.total else low
            guess = guess if low < guess < high else (low + high) / 2
            if abs(guess - rate) <= _PRECISION * guess:
                return guess
            rate = guess
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


@dataclass(frozen=True, slots=True)
class _Tail:
    """The probability of at most so many events, and that of the last of these numbers alone."""

    total: float
    last: float


def _at_most(events: int, trials: int, rate: float) -> _Tail:
    """Return the tail for `events` < `trials` and a rate from their share up to, and not including, 1."""
    if rate <= 0:
        return _Tail(1.0, 1.0)

    ways = math.lgamma(trials + 1) - math.lgamma(events + 1) - math.lgamma(trials - events + 1)
    last = mass = total = math.exp(ways + events * math.log(rate) + (trials - events) * math.log1p(-rate))
    # Each mass follows from the next larger number's. Above the observed share they only become smaller, so the sum
    # ends early: a bound for millions of trials takes as long as its deviation is wide.
    for number in range(events, 0, -1):
        mass *= number / (trials - number + 1) * (1 - rate) / rate
        total += mass
        if number < rate * trials and mass <= _NEGLIGIBLE * total:
            break
    return _Tail(total, last)


def tolerance_factor(count: int, share: float, confidence: float = CONFIDENCE) -> float:
    """Return how many deviations above the mean of `count` normal values at most a `share` of all values lies.

    This holds with the `confidence`, for 3 values or more; mean and deviation are those of the values. The
    approximation is Natrella's (*Experimental Statistics*, 1963, section 2-2.2); it is 1 % too low for ten values.
    """
    normal = NormalDist()
    beyond, sure = normal.inv_cdf(1 - share), normal.inv_cdf(confidence)
    a, b = 1 - sure**2 / (2 * (count - 1)), beyond**2 - sure**2 / count
    return (beyond + math.sqrt(max(0.0, beyond**2 - a * b))) / a
