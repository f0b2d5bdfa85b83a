"""Which pictures show the same shot: a file twice, a copy saved anew or in another size, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.errors import ImageError, list_few

SIDE = 16
"""A picture is first compared as the mean colours of so many cells across and down."""
_LEVELS = 6
"""No cell of a copy differs by more grey levels, as of 160 photographs saved as JPEG of quality 50 to 90."""
_FINE_SIDE, _FINE_LEVELS = 3, 12
"""... nor do so many pixels across and down, which find a defect of a few in pictures of a camera that stands still.

Of 57 photographs nearly all copies as JPEG of quality 75 and more, or scaled with antialias, differ by less. Defects of
3 x 3 pixels, or as thin as a pixel, that stand out by 60 levels differ by 20 and more.
"""
_SHOWN = 3

Look = NDArray[np.uint8]


def look_of(pixels: NDArray[np.uint8]) -> Look:
    """Return how a picture (H, W, 3) uint8 looks, (SIDE, SIDE, 3)."""
    return np.asarray(cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def remarks(pictures: Sequence[tuple[str, Look, str]], pixels_of: Callable[[int], NDArray[np.uint8]]) -> list[str]:
    """Return a remark on pictures, each by name, look and label, that look the same under different labels; or none.

    `pixels_of` returns the pixels (H, W, 3) uint8 of the picture at a place, or raises ImageError.
    """
    pairs = _nearest_pairs([look for _, look, _ in pictures], [label for *_, label in pictures])
    same = [f"{pictures[one][0]} = {pictures[other][0]}" for one, other in pairs if _are_copies(one, other, pixels_of)]
    if not same:
        return []
    named = list_few(same, _SHOWN, "; ")
    return [f"identical-looking pictures have two labels, {named}; is one of the labels wrong?"]


def are_one_shot(looks: Sequence[Look], pixels_of: Callable[[int], NDArray[np.uint8]]) -> bool:
    """Tell whether pictures that look so are all copies of the first; `pixels_of` as for `remarks`."""
    differ = _differ(np.stack(looks).astype(np.int16), looks[0].astype(np.int16))
    return bool((differ <= _LEVELS).all()) and all(_are_copies(0, place, pixels_of) for place in range(1, len(looks)))


def _nearest_pairs(looks: Sequence[Look], labels: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of pictures under different labels that may be copies, in pairs: each the most alike of both.

    Other pictures may look like these as well, as those of a series do.
    """
    if not looks:
        return []
    seen, named, half = np.stack(looks).astype(np.int16), np.asarray(labels), SIDE // 2
    coarse = seen.reshape(len(seen), half, 2, half, 2, 3).sum(axis=(2, 4), dtype=np.int16)
    nearest: dict[int, int] = {}
    for label in dict.fromkeys(labels):
        others = np.flatnonzero(named != label)
        coarse_others = coarse[others]
        for place in np.flatnonzero(named == label).tolist():
            near = others[_differ(coarse_others, coarse[place]).max(axis=1, initial=0) <= 4 * _LEVELS]  # few are
            apart = _differ(seen[near], seen[place])
            near, apart = (some[apart.max(axis=1, initial=0) <= _LEVELS] for some in (near, apart))
            if len(near):
                nearest[place] = int(near[apart.sum(axis=1).argmin()])
    return [(one, other) for one, other in nearest.items() if one < other and nearest[other] == one]


def _differ(looks: NDArray[np.number], look: NDArray[np.number]) -> NDArray[np.number]:
    """Return by how many levels the cells of looks (n, ...) differ from those of another, (n, cells)."""
    return np.asarray(np.abs(looks - look)).reshape(len(looks), look.size)


def _are_copies(one: int, other: int, pixels_of: Callable[[int], NDArray[np.uint8]]) -> bool:
    """Tell whether two pictures differ nowhere by more than copies do, at the size of the smaller."""
    try:
        both = [cv2.cvtColor(pixels_of(place), cv2.COLOR_RGB2GRAY) for place in (one, other)]
    except ImageError:  # it was read before
        return False
    height, width = np.minimum(*(pixels.shape for pixels in both)).tolist()
    first, second = (cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA) for pixels in both)
    apart = cv2.blur(cv2.subtract(first, second, dtype=cv2.CV_32F), (_FINE_SIDE, _FINE_SIDE))
    return float(np.abs(apart).max()) <= _FINE_LEVELS
