"""Whether good pictures are series of few parts, as a camera takes them in a burst: they show less than they count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEAST_PARTS = 4
"""Fewer groups are those of two or three parts that look otherwise; see `experts.two_groups`."""
_MOST_PARTS = 2 / 3
"""The share of the pictures from which on hardly any are alike."""
_GAP = 0.5
"""By how much, as a logarithm, pictures of one part lie nearer to each other than those of several.

Of 600 draws of 20 pictures of different screws and nuts none had more than 0.28; series of five had 0.9. As a probe
sees them, 320 draws of 10 to 30 pictures of screws, nuts, cookies and figures had 0.24 at most, and series of five 1.0.
"""


def remarks(parts: NDArray[np.intp] | None, so: str, of: str = "") -> list[str]:
    """Return a remark on pictures that are series of few parts, by what `parts_of` says of them; or none.

    `so` says what follows, and `of` whose pictures they are.
    """
    if parts is None:
        return []
    return [
        f"{len(parts)} pictures{of} look like series of about {len(np.unique(parts))} parts, alike within each: {so}; "
        "give pictures of different parts"
    ]


def parts_of(looks: NDArray[np.floating]) -> NDArray[np.intp] | None:
    """Return the number of its part for each picture (n, d), the same for a series; None if there are no series.

    There are if the distances within and between them are far apart. One alone is none: a group that varies less.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import
    from scipy.spatial.distance import pdist

    different, numbers = np.unique(looks, axis=0, return_inverse=True)
    count = len(different)
    if count < 2 * LEAST_PARTS:
        return None
    tree = linkage(pdist(different), "average")
    gaps = {count - place: gap for place, gap in enumerate(np.diff(np.log(tree[:, 2])), 1)}
    usable = {parts: gap for parts, gap in gaps.items() if LEAST_PARTS <= parts <= _MOST_PARTS * count}
    best = max(usable, key=lambda parts: usable[parts], default=0)
    if not best or usable[best] < _GAP:
        return None
    parts = np.asarray(fcluster(tree, best, "maxclust"), np.intp)
    return parts[numbers.ravel()] if (np.bincount(parts) > 1).sum() > 1 else None


def looks_of(features: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return how pictures with pooled features (n, d) look as wholes, each number in its usual deviations."""
    means = features[:, : features.shape[1] // 2]  # the largest values are those of single places
    spread = means.std(axis=0)
    return np.asarray(means / np.maximum(spread, 0.1 * spread.mean() + 1e-6))


def farthest(names: Sequence[str], deviations: NDArray[np.floating]) -> str:
    """Return which of the good pictures, by how far each deviates from the others, a person should look at."""
    count = min(5, max(1, len(names) // 4))
    worst = np.argsort(-deviations, kind="stable")[:count]
    return (
        f"these deviate most of the good pictures: {', '.join(names[place] for place in worst)}; take out what is not "
        "good, for what looks like it passes"
    )
