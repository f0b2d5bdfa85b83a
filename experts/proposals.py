"""Where a picture differs from its reference: a map of differences, the regions in it, and crops around them.

The regions are connected components of the thresholded map after a morphological opening, which drops what is thinner
than a displaced edge, and a closing, which joins the pieces of one defect (Gonzalez and Woods, *Digital Image
Processing*, chapter 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.store.kinds import Image

OPENING = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
CLOSING = np.ones((3, 3), np.uint8)
LEAST_AREA = 6
"""Regions of fewer pixels are noise of the edges."""
LARGE, PART = 96, 64
"""A region with a side above LARGE is cut into parts of at most PART pixels, so that a crop shows each of them."""
CELL = 96
"""The side in pixels of a crop as the network sees it."""
REACH = 40
"""By how many pixels, at most, a defect that a crop finds lies beside the middle of the crop."""
_SHARED = 24
"""A region whose every corner is so near to the middle of another region's crop needs no crop of its own."""

Grey = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the picture that differs: `xyxy` in whole pixels."""

    xyxy: tuple[int, int, int, int]

    @property
    def centre(self) -> tuple[int, int]:
        """The middle in whole pixels."""
        x1, y1, x2, y2 = self.xyxy
        return (x1 + x2) // 2, (y1 + y2) // 2

    @property
    def context(self) -> int:
        """The side in pixels of what the crop of this region shows, CELL or twice that.

        Small regions are seen pixel by pixel: a gap of two pixels decides whether a trace is open.
        """
        x1, y1, x2, y2 = self.xyxy
        return CELL if max(x2 - x1, y2 - y1) <= CELL // 2 else 2 * CELL


def regions(different: NDArray[np.bool_]) -> list[Region]:
    """Return the regions of a map (H, W) of pixels that differ, the largest first."""
    mask = cv2.morphologyEx(different.astype(np.uint8), cv2.MORPH_OPEN, OPENING)
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, CLOSING)
    _, places, rows, _ = cv2.connectedComponentsWithStats(mask)
    large = (rows[:, cv2.CC_STAT_WIDTH] > LARGE) | (rows[:, cv2.CC_STAT_HEIGHT] > LARGE)
    large[0] = False  # the background
    if large.any():
        cut = large[places]
        cut[PART - 1 :: PART] = False
        cut[:, PART - 1 :: PART] = False
        parts = cv2.connectedComponentsWithStats(cut.astype(np.uint8))[2][1:]
        rows = np.concatenate((rows[1:][~large[1:]], parts))
    else:
        rows = rows[1:]
    rows = rows[rows[:, cv2.CC_STAT_AREA] >= LEAST_AREA]
    rows = rows[np.argsort(-rows[:, cv2.CC_STAT_AREA], kind="stable")]
    return [Region((x, y, x + width, y + height)) for x, y, width, height, _ in rows.tolist()]


def covering(found: Sequence[Region]) -> list[Region]:
    """Return the regions, in their order, that no crop of an earlier region shows well."""
    kept: list[Region] = []
    for region in found:
        x1, y1, x2, y2 = region.xyxy
        for other in kept:
            x, y = other.centre
            if other.context == region.context == CELL and max(x - x1, y - y1, x2 - x, y2 - y) <= _SHARED:
                break
        else:
            kept.append(region)
    return kept


def stacked(image: Image, reference: Image, difference: Grey) -> Image:
    """Return (H, W, 3) uint8: the picture in grey, its reference in grey, and how much they differ."""
    greys = [cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY) for pixels in (image, reference)]
    return np.asarray(cv2.merge([*greys, difference]), np.uint8)


def crops(stack: Image, shown: Sequence[Region], margin: int = 0) -> Image:
    """Return crops (n, side, side, 3) uint8 of regions of a stack (H, W, 3); what lies outside of it is 0.

    A crop shows its region's context, scaled to CELL pixels, and `margin` more such pixels at each side.
    """
    side = CELL + 2 * margin
    padded = cv2.copyMakeBorder(stack, side, side, side, side, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    cut = np.empty((len(shown), side, side, 3), np.uint8)
    for place, region in enumerate(shown):
        wide = side * region.context // CELL
        left, top = (middle + side - wide // 2 for middle in region.centre)
        window = padded[top : top + wide, left : left + wide]
        cut[place] = window if wide == side else cv2.resize(window, (side, side), interpolation=cv2.INTER_AREA)
    return cut
