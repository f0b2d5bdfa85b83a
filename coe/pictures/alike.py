"""Which pictures under different labels show the same shot: a file twice, or a copy saved anew or in another size."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.errors import list_few

SIDE = 16
"""A picture is compared as the mean colours of so many cells across and down."""
_LEVELS = 6
"""No cell of a copy differs by more grey levels.

Copies of 160 photographs, as JPEG of quality 50 to 90 or in other sizes, had 4 at most but for the smallest; the
nearest good and bad parts of eight sets 11 and more (solar cells, which all look alike).
"""
_SHOWN = 3

Look = NDArray[np.uint8]


def look_of(pixels: NDArray[np.uint8]) -> Look:
    """Return how a picture (H, W, 3) uint8 looks, (SIDE, SIDE, 3)."""
    return np.asarray(cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def under_two_labels(looks: Sequence[Look], labels: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of pictures that look the same under different labels, in pairs: each the most alike of both.

    Other pictures may look like these as well, as those of a series do.
    """
    if not looks:
        return []
    seen, named, half = np.stack(looks).astype(np.int16), np.asarray(labels), SIDE // 2
    coarse = seen.reshape(len(seen), 2, half, 2, half, 3).mean(axis=(2, 4))
    nearest: dict[int, int] = {}
    for place, look in enumerate(seen):
        others = np.flatnonzero(named != named[place])
        near = others[_differ(coarse[others], coarse[place]) <= _LEVELS]  # few are, and these are looked at closely
        apart = _differ(seen[near], look)
        if len(near) and apart.min() <= _LEVELS:
            nearest[place] = int(near[apart.argmin()])
    return [(one, other) for one, other in nearest.items() if one < other and nearest[other] == one]


def remarks(pictures: Sequence[tuple[str, Look, str]]) -> list[str]:
    """Return a remark on pictures, each by name, look and label, that look the same under different labels; or none."""
    pairs = under_two_labels([look for _, look, _ in pictures], [label for *_, label in pictures])
    if not pairs:
        return []
    named = list_few((f"{pictures[one][0]} = {pictures[other][0]}" for one, other in pairs), _SHOWN, "; ")
    return [f"the same picture stands under two labels, {named}; one of the labels is wrong"]


def _differ(looks: NDArray[np.number], look: NDArray[np.number]) -> NDArray[np.number]:
    """Return by how many levels the cells of looks (n, ...) differ from those of another at most, (n,)."""
    return np.asarray(np.abs(looks - look).max(axis=(1, 2, 3), initial=0))
