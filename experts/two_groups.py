"""Whether good pictures fall into two groups with nothing between them: of two parts, or of one that looks two ways.

Nobody but a person can tell these apart, so the smaller group is named, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coe.errors import list_few
from coe.pictures.photographs import natural

_FEW = 3
"""A smaller group is chance."""
_LEAST = 0.25
"""The share of a group from which on it is named; kind `patch` leaves a smaller one out."""
_GAP = 0.3
"""By how much, as a logarithm, nearest pictures of two groups lie farther apart than those within them.

With it 417 of 420 mixtures of two parts were named, and 4 of 1,280 draws of one part (kind `patch`).
"""
_SHOWN = 3


def remarks(names: Sequence[str], looks: NDArray[np.floating], two_ways: str) -> list[str]:
    """Return a remark that names the smaller of two groups, of pictures by how they look as wholes (n, d); or none.

    `two_ways` is what to do if good parts look in two ways.
    """
    group = smaller(looks)
    if not group:
        return []
    named = list_few(sorted((names[place] for place in group), key=natural), _SHOWN)
    return [
        f"{named} look like each other and unlike the other {len(names) - len(group)} good pictures: if they "
        "show another part, remove them, otherwise it passes as good; if good parts have two looks, such "
        f"as those of two suppliers, {two_ways}"
    ]


def smaller(looks: NDArray[np.floating]) -> list[int]:
    """Return the places of the smaller of two groups between which there is a gap, or none.

    Groups are those of an average linkage by Euclidean distances of looks (n, d); equal pictures are one.
    """
    from scipy.cluster.hierarchy import linkage  # slow to import
    from scipy.spatial.distance import pdist, squareform

    different, first = np.unique(looks, axis=0, return_inverse=True)
    count = len(different)
    if count < 2 * _FEW:
        return []
    apart = pdist(different)
    logs = np.log(squareform(apart).clip(1e-9))
    np.fill_diagonal(logs, np.inf)
    groups = [[place] for place in range(count)]
    found: list[int] = []
    for one, other, *_ in linkage(apart, "average"):
        groups.append(groups[int(one)] + groups[int(other)])
        group = groups[-1]
        if max(_FEW, _LEAST * count) <= len(group) <= count / 2 and _gap(logs, group) >= _GAP:
            found = group
    return [place for place, number in enumerate(first.ravel()) if number in found]


def _gap(logs: NDArray[np.floating], group: list[int]) -> float:
    rest = [place for place in range(len(logs)) if place not in group]
    across = float(logs[np.ix_(group, rest)].min())
    within = [float(logs[np.ix_(places, places)].min(axis=1).max()) for places in (group, rest)]
    return across - sum(within) / 2
