"""Rates with the bounds that a count of trials allows (Clopper and Pearson, 1934), tolerance and prediction limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95


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
        from scipy.special import betaincinv  # slow to import, and most commands count nothing

        return float(betaincinv(self.events + 1, self.trials - self.events, confidence))

    def lower(self, confidence: float = CONFIDENCE) -> float:
        """Return the bound under which the true rate lies with a probability of 1 - `confidence` at most."""
        if self.events <= 0:
            return 0.0
        from scipy.special import betaincinv  # slow to import

        return float(betaincinv(self.events, self.trials - self.events + 1, 1 - confidence))

    def is_above(self, share: float) -> bool:
        """Tell whether `lower` lies above a share, 0 to 1 exclusive, by the binomial distribution, without scipy."""
        choices = math.lgamma(self.trials + 1)
        tail = [
            math.exp(
                choices
                - math.lgamma(events + 1)
                - math.lgamma(self.trials - events + 1)
                + events * math.log(share)
                + (self.trials - events) * math.log1p(-share)
            )
            for events in range(self.events, self.trials + 1)
        ]
        return math.fsum(tail) < 1 - CONFIDENCE

    def __str__(self) -> str:
        """Say the count, and the one-sided bound above the true rate."""
        return f"{self.events} of {self.trials}, at most {self.upper():.2%}"


def prediction_factor(count: int, share: float, more: int = 0) -> float:
    """Return how many deviations above the mean of `count` normal values the next value lies with a chance of `share`.

    Mean and deviation are those of the values, 2 or more. It is the factor of a one-sided prediction limit (Hahn and
    Meeker, 1991, section 4.8): over many samples a `share` of further values exceeds it, of one sample more or fewer.
    `more` are the values beyond these that the deviation is known from.
    """
    from scipy.special import stdtrit  # slow to import; scipy.stats takes three times as long

    return -float(stdtrit(count - 1 + more, share)) * math.sqrt(1 + 1 / count)


@cache
def extreme_factor(count: int, share: float, more: int = 0) -> float:
    """Return the factor of `prediction_factor` for values of which each is an extreme of many (Gumbel's distribution).

    Their upper tail is longer than that of normal values, and the deviation is `extreme_deviation`'s. The chance is the
    mean of many samples, always the same.
    """
    import numpy as np  # slow to import, as all of these
    from scipy.optimize import brentq

    values = -np.log(-np.log(np.random.default_rng(0).random((20_000, count))))
    variance = (more * math.pi**2 / 6 + (count - 1) * extreme_deviation(values) ** 2) / (count - 1 + more)
    centre, deviation = values.mean(axis=1), np.sqrt(variance)

    def exceeding(factor: float) -> float:
        return float(-np.expm1(-np.exp(-(centre + factor * deviation))).mean())

    return float(brentq(lambda factor: exceeding(factor) - share, -10, 1e9))


def extreme_deviation(values: NDArray[Any]) -> NDArray[Any]:
    """Return the standard deviation (...) of extremes (..., n), by the second L-moment (Hosking, 1990); 0 of one value.

    An odd value counts by its distance, not by the square of it, as in the standard deviation of the values.
    """
    import numpy as np  # slow to import

    count = values.shape[-1]
    weights = (2 * np.arange(count) + 1 - count) / max(1, count * (count - 1))
    scaled: NDArray[Any] = np.sort(values, axis=-1) @ weights * (math.pi / math.sqrt(6) / math.log(2))
    return scaled


def trials_needed(rate: float, confidence: float = CONFIDENCE) -> int:
    """Return the least number of trials that prove a rate above 0 without any event."""
    return max(1, math.ceil(math.log(1 - confidence) / math.log1p(-rate))) if rate < 1 else 1


def tolerance_factor(count: int, share: float) -> float:
    """Return how many deviations above the mean of `count` normal values at most a `share` of all values lies.

    This holds with `CONFIDENCE`, for 2 values or more; mean and deviation are those of the values. It is the factor
    of a one-sided tolerance limit, a quantile of the noncentral t distribution (ISO 16269-6).
    """
    from scipy.special import nctdtrit, ndtri  # slow to import

    return float(nctdtrit(count - 1, -ndtri(share) * math.sqrt(count), CONFIDENCE)) / math.sqrt(count)
