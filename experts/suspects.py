"""Pictures among the good ones that look bad: one of twenty is enough to let most defects of a part pass.

With bad pictures at hand, a good one is suspect that lies nearer to them than to its like. Without, one that lies far
from the median of all good ones. Distances are of pooled features.
"""

from __future__ import annotations

import numpy as np

from experts.scale import Numbers

_OF_BAD, _OF_GOOD = 2, 4
"""A good picture is suspect whose 2nd nearest bad one lies nearer than its 4th nearest good one."""
_MOST_BESIDE_BAD = 0.25
"""If more than this share of the good ones would go, they are named and stay: the two look alike."""
_FAR, _GAP = 2.5, 1.0
"""Without bad ones: pictures so many deviations farther from the median one than is usual (median and MAD), with such a
gap between them and all others.
"""
_USUAL_COUNT = 20
_MOST = 4
_LEAST = 8
"""Of fewer good pictures none can be told from the others."""
_LEAST_SPREAD = 0.1


def beside_bad(good: Numbers, bad: Numbers) -> tuple[list[int], bool]:
    """Return the places of good pictures, (n, d), that lie among the bad ones, (m, d), and whether they are left out.

    They are not if they would be more than a quarter of all.
    """
    if len(good) < _LEAST or len(bad) < _OF_BAD:
        return [], True
    rows, others = _standardised(good, bad)
    to_good = _squares(rows, rows)
    np.fill_diagonal(to_good, np.inf)
    to_bad = _squares(rows, others)
    found = np.flatnonzero(np.sort(to_bad, axis=1)[:, _OF_BAD - 1] < np.sort(to_good, axis=1)[:, _OF_GOOD - 1])
    return [int(place) for place in found], len(found) <= _MOST_BESIDE_BAD * len(good)


def far_from_most(good: Numbers) -> list[int]:
    """Return the places of at most four good pictures, (n, d), that lie far from the median of all, beyond a gap."""
    # Not standardised: a bad picture would hide in the spread that it makes.
    far = np.log(np.maximum(((good - np.median(good, axis=0)) ** 2).mean(axis=1), 1e-12)) / 2
    order, found = np.argsort(far), 0
    wider = max(1.0, _USUAL_COUNT / len(good))  # what is usual is less known from fewer
    for count in range(1, min(_MOST, len(good) - _LEAST + 1) + 1):
        rest, nearest = far[order[:-count]], far[order[-count]]
        middle = float(np.median(rest))
        deviation = max(1.4826 * float(np.median(np.abs(rest - middle))), 1e-3)
        if nearest > max(middle + wider * _FAR * deviation, rest.max() + wider * _GAP * deviation):
            found = count
    return sorted(int(place) for place in order[len(good) - found :])


def _standardised(good: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
    centre, spread = good.mean(axis=0), good.std(axis=0)
    deviation = np.maximum(spread, max(_LEAST_SPREAD * float(spread.mean()), 1e-6))
    return (good - centre) / deviation, (others - centre) / deviation


def _squares(rows: Numbers, others: Numbers) -> Numbers:
    from scipy.spatial.distance import cdist  # slow to import

    return np.asarray(cdist(rows, others, "sqeuclidean"))
