"""Jobs that may be split over unlike machines: the least time in which all can be done, or less, never more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEPS = 60
"""How long weights of three machines and more are searched."""


def least_share(work_s: Floats) -> float:
    """Return a time in seconds that no way to share jobs over machines can beat.

    `work_s` is [machine, job]: what the whole job takes on that machine. For any weights of the machines that sum to
    one, no time is below the sum over jobs of the least weighted work (duality of linear programs). Up to two machines
    the best weights are found, so that the bound is exact for jobs that may be split; of more, good ones.
    """
    if len(work_s) == 1:
        return float(work_s.sum())
    if len(work_s) == 2:
        return _of_two(*work_s)
    return _of_many(work_s)


def _of_two(first_s: Floats, second_s: Floats) -> float:
    """Try the weight at which each job changes sides: between these the sum is a line, so the largest is there."""
    counts = first_s + second_s > 0
    first_s, second_s = first_s[counts], second_s[counts]
    if not len(first_s):
        return 0.0
    weight = second_s / (first_s + second_s)
    order = np.argsort(weight)
    first_s, second_s, weight = first_s[order], second_s[order], weight[order]
    # Sorted so, the jobs before the one in question are cheaper on the second machine, the others on the first.
    before_s = np.concatenate([[0.0], np.cumsum(second_s)[:-1]])
    behind_s = np.cumsum(first_s[::-1])[::-1]
    return float((weight * behind_s + (1 - weight) * before_s).max())


def _of_many(work_s: Floats) -> float:
    """Raise the weights of machines that get more than the mean of the work, in ever smaller steps."""
    machines = len(work_s)
    weight = np.full(machines, 1 / machines)
    best = 0.0
    for step in range(1, STEPS + 1):
        weighted_s = weight[:, None] * work_s
        chosen = weighted_s.argmin(axis=0)
        best = max(best, float(weighted_s.min(axis=0).sum()))
        load_s = np.bincount(chosen, work_s[chosen, np.arange(work_s.shape[1])], minlength=machines)
        if load_s.max() <= 0:
            return best
        weight = weight * np.exp((load_s / load_s.max() - 1) / np.sqrt(step))
        weight /= weight.sum()
    return best
