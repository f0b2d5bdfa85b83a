"""Whether good pictures are series of few parts, as a camera takes them in a burst: they show less than they count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEAST_PARTS = 4
"""Fewer groups are those of two or three parts that look otherwise; see `experts.two_groups`."""
_MOST_PARTS = 2 / 3
"""The share of the pictures from which on hardly any are alike."""
_WIDTH = 0.5
"""The silhouette width from which on groups are more than chance ("a reasonable structure"; Rousseeuw, 1987).

Of 1,500 draws of 10 to 40 different screws, cookies, figures, hazelnuts or tiles none was taken for series, of 300 of
solar cells 4. Series of four to eight parts, turned by a degree and moved by a hundredth, are nearly all found (by a
gap between the distances half were), but none of figures, which differ by little more than that.
"""
_NULLS = 19
"""... if none of so many samples of normal values with the same covariance has groups as clear (Liu et al., 2008).

Pictures that differ in one thing alone, as in light, fall into groups by chance.
"""
_NULL_ROWS = 300
"""A sample has no more values: with 4,000 it took two minutes. Groups of fewer are about as clear, or clearer."""
_TRIED = 8
"""So many numbers of parts are tried: those before which distances grow most."""


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

    There are if pictures of a part lie much nearer to each other than to those of the next part, by their silhouettes.
    One series alone is none: a group that varies less.
    """
    different, numbers = np.unique(looks, axis=0, return_inverse=True)
    if len(different) < 2 * LEAST_PARTS:
        return None
    width, parts = _clearest(different)
    if width < _WIDTH or (np.bincount(parts[numbers.ravel()]) > 1).sum() < 2:
        return None
    chance = np.random.default_rng(0)
    spread = (different - different.mean(axis=0)) / np.sqrt(len(different) - 1)
    samples = (chance.normal(size=(min(len(spread), _NULL_ROWS), len(spread))) @ spread for _ in range(_NULLS))
    if any(_clearest(sample)[0] >= width for sample in samples):
        return None
    return parts[numbers.ravel()]


def _clearest(looks: NDArray[np.floating]) -> tuple[float, NDArray[np.intp]]:
    """Return the silhouette width of the clearest division of pictures (n, d) into parts, and their numbers (n,)."""
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import
    from scipy.spatial.distance import pdist, squareform

    count, apart = len(looks), pdist(looks)
    tree, square = linkage(apart, "average"), squareform(apart)
    growth = np.diff(np.log(np.maximum(tree[:, 2], 1e-12)))
    usable = [parts for parts in range(LEAST_PARTS, count) if parts <= _MOST_PARTS * count]
    tried = sorted(usable, key=lambda parts: -growth[count - parts - 1])[:_TRIED]
    divisions = [np.asarray(fcluster(tree, parts, "maxclust"), np.intp) for parts in tried]
    widths = [_width(square, parts) for parts in divisions]
    best = int(np.argmax(widths))
    return widths[best], divisions[best]


def _width(apart: NDArray[np.floating], parts: NDArray[np.intp]) -> float:
    """Return the mean silhouette of pictures that lie `apart` (n, n), of parts of these numbers (n,), from 1 on.

    Or that of the parts, if it is less: many shots of one would hide that the others are no series.
    """
    order = np.argsort(parts, kind="stable")
    sizes = np.bincount(parts)[1:]
    sums = np.add.reduceat(apart[:, order], np.cumsum(sizes) - sizes, axis=1)
    own = parts[:, None] == np.arange(1, len(sizes) + 1)
    within = sums[own] / np.maximum(sizes[parts - 1] - 1, 1)
    nearest = np.where(own, np.inf, sums / sizes).min(axis=1)
    silhouettes = (nearest - within) / np.maximum(np.maximum(nearest, within), 1e-12)
    silhouettes = np.where(sizes[parts - 1] > 1, silhouettes, 0.0)
    return float(min(silhouettes.mean(), (silhouettes / sizes[parts - 1]).sum() / len(sizes)))


def looks_of(features: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return how pictures with pooled features (n, d) look as wholes, each number in its usual deviations."""
    means = features[:, : features.shape[1] // 2]  # the largest values are those of single places
    spread = means.std(axis=0)
    return np.asarray(means / np.maximum(spread, 0.1 * spread.mean() + 1e-6))


def farthest(names: Sequence[str], deviations: NDArray[np.floating], limit: float) -> str:
    """Return which of the good pictures, by how far each deviates from the others, a person should look at."""
    count = min(5, max(1, len(names) // 4))
    worst = np.argsort(-deviations, kind="stable")[:count]
    beyond = int((deviations[worst] > limit).sum())
    first = f", the first {beyond} beyond the limit" if beyond else ""
    return (
        f"of the good pictures, these deviate most{first}: {', '.join(names[place] for place in worst)}; move bad ones "
        "into a folder 'bad' and train again, otherwise similar parts pass"
    )
