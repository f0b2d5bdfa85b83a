"""A lower bound on the time for jobs that may be split over machines of different speeds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEPS = 60
"""The number of steps of the search for weights of three machines and more."""


def least_share(work_s: Floats) -> float:
    """Return a time in seconds that no way to share jobs over machines can beat.

    `work_s` is [machine, job]: the time of the whole job on that machine. For any weights of the machines that sum to
    1, no time is below the sum over jobs of the least weighted work (duality of linear programs). For up to two
    machines the best weights are found, so the bound is exact for jobs that may be split; for more, good weights.
    """
    if len(work_s) == 1:
        return float(work_s.sum())
    if len(work_s) == 2:
        return _of_two(*work_s)
    return _of_many(work_s)


def _of_two(first_s: Floats, second_s: Floats) -> float:
    """Try each weight at which a job changes sides: between these the sum is linear, so one of them is the best."""
    counts = first_s + second_s > 0
    first_s, second_s = first_s[counts], second_s[counts]
    if not len(first_s):
        return 0.0
    weight = second_s / (first_s + second_s)
    order = np.argsort(weight)
    first_s, second_s, weight = first_s[order], second_s[order], weight[order]
    # In this order the jobs before the current job are cheaper on the second machine, the others on the first.
    before_s = np.concatenate([[0.0], np.cumsum(second_s)[:-1]])
    behind_s = np.cumsum(first_s[::-1])[::-1]
    return float((weight * behind_s + (1 - weight) * before_s).max())


def _of_many(work_s: Floats) -> float:
    """Lower the weights of machines with less work than the busiest machine, in ever smaller steps."""
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
