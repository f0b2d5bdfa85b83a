"""What kinds that learn from good parts alone share: the scale of deviations, who is left out, and the metrics.

Each part is judged by what the others show, so that the limit is not that of parts that were learned (leave-one-out).
The logarithms of their largest deviations are taken as normally distributed. `called` of `good_parts` counts without
that assumption, and `called_at_most` is its bound (Clopper and Pearson).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coe.comparing import left_out
from coe.core import Expert
from coe.errors import ConfigError
from coe.rates import Rate, extreme_deviation, tolerance_factor
from coe.store.kinds import Reference, Trained, TrainingPlan

WANTED = 0.05
"""The false-call rate that is wanted if the plan does not say it."""
FEW = 5
"""With fewer good parts nothing can be said of the next."""
ADVISED = 10
"""With fewer good parts training says that the limit is wide."""
MOST_STRANGE = 0.25
"""The largest share of parts that are left out as strange: what more parts show is how good parts are."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How parts deviate: of their largest deviations (n, 2) mean and standard deviation, (2,), and all in these units.

    `deviations` is (n,): for each part that of its pixels or of its features, whichever is larger.
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

    def deviation_of(self, largest: Numbers) -> float:
        """Return the deviation of a further part, whose largest deviations are (2,)."""
        return float(((largest - self.centre) / self.deviation).max())

    def limit(self, share: float) -> float:
        """Return the deviation that at most a share of good parts exceeds, with a confidence of 95 %."""
        factor = tolerance_factor(len(self.deviations), share)
        return float(self.deviations.mean() + factor * self.deviations.std(ddof=1))


@dataclass(frozen=True, slots=True)
class Look:
    """What the good parts of one reference tell: tensors by name, the limit, and how many of them it calls.

    `strange` are the parts that were left out, with the reason, and `remarks` are for people. `reference` is its id.
    """

    reference: str
    state: dict[str, torch.Tensor]
    limit: float
    called: Rate
    strange: dict[str, str]
    remarks: tuple[str, ...] = ()


def reference_of(expert: Expert, plan: TrainingPlan) -> Reference:
    """Return the only reference of a plan that has some; raises ConfigError if there are several."""
    first, *others = plan.references.values()
    if any(other is not first for other in others):
        raise ConfigError(
            f"expert '{expert.id}' learns in the frame of one reference, and its components have several "
            f"({', '.join(plan.references)}); write the same `reference: NAME` in each of them"
        )
    return first


def together(expert: Expert, wanted: float, looks: Sequence[Look], unfit: Mapping[str, str]) -> Trained:
    """Return what an expert learned of all alternates; its state holds the tensors of the looks alone.

    `unfit` says why parts fit none of them. Raises ConfigError if too many parts are left out.
    """
    without = {**unfit, **{name: reason for look in looks for name, reason in look.strange.items()}}
    kept = sum(look.called.trials for look in looks)
    left_out.check(kept, without)
    remarks = [f"left out: {name}: {reason}" for name, reason in without.items()]
    for look in looks:
        if look.called.trials < ADVISED:
            of = (f" of '{look.reference}'" if look.reference else " of a look") if len(looks) > 1 else ""
            remarks.append(
                f"only {look.called.trials} good parts{of}: a limit from so few is wide, and defects may pass; give "
                f"{ADVISED} or more"
            )
        remarks += look.remarks
    # What was left out as unlike is called, so that if it is good, the expert calls its like as well.
    strange = sum(len(look.strange) for look in looks)
    called = Rate(sum(look.called.events for look in looks) + strange, kept + strange)
    metrics = {
        "good_parts": float(kept),
        "wanted_false_calls": wanted,
        "called": float(called.events),
        "called_at_most": called.upper(),
        "limit": max(look.limit for look in looks),
        "left_out": float(len(without)),
    }
    state = {name: torch.cat([look.state[name] for look in looks]) for name in looks[0].state}
    return Trained(state, expert.labels, metrics, tuple(remarks))


def wanted_of(plan: TrainingPlan) -> float:
    """Return the false-call rate that is wanted."""
    return WANTED if plan.false_calls is None else plan.false_calls


def typical(number: int, largest_of: Callable[[list[int]], Numbers], strange: float, least: Numbers) -> list[int]:
    """Return the places of those of a number of parts that are not strange.

    `largest_of` gives the largest deviations (n, k) of the parts at some places, each from the others of these. One
    part after another is taken out, the strangest first, and judged by the others without it: a bad part widens the
    spread that it is judged by, and the limit. It is strange beyond the limit for a share `strange` of good parts, if
    it deviates by `least` (k,) more than any other.
    """
    kept = list(range(number))
    fewest = max(FEW, math.ceil((1 - MOST_STRANGE) * number))
    largest = largest_of(kept)
    while len(kept) > fewest:
        strangest = int(Scale.of(largest).deviations.argmax())
        others = kept[:strangest] + kept[strangest + 1 :]
        of_others = largest_of(others)
        scale = Scale.of(of_others)
        farther = largest[strangest] - of_others.max(axis=0) >= least
        if scale.deviation_of(largest[strangest]) <= scale.limit(strange) or not farther.any():
            break
        kept, largest = others, of_others
    return kept
