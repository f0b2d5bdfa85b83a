"""In which units good parts deviate: mean and deviation of what each deviates by from the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coe.helpers.rates import extreme_deviation

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How parts deviate: of their largest deviations (n, k) mean and standard deviation, (k,), and all in these units.

    `deviations` is (n,): for each part the largest of its k deviations.
    """

    centre: Numbers
    deviation: Numbers
    deviations: Numbers

    @classmethod
    def of(cls, largest: Numbers, usual: Numbers | None = None, worth: int = 0, *, extremes: bool = False) -> Scale:
        """Return the scale of parts with these largest deviations, (n, k).

        `usual` (k,) are standard deviations that are known beforehand, and count as those of `worth` further parts
        would: a moderated variance (Smyth, 2004), which is less a matter of chance than that of a few parts. Of
        `extremes` the deviations are those of Gumbel's distribution.
        """
        centre = largest.mean(axis=0)
        variance = extreme_deviation(largest.T) ** 2 if extremes else largest.var(axis=0, ddof=1)
        if usual is not None:
            variance = (worth * usual**2 + (len(largest) - 1) * variance) / (worth + len(largest) - 1)
        deviation = np.maximum(np.sqrt(variance), 1e-3)
        return cls(centre, deviation, ((largest - centre) / deviation).max(axis=1))
