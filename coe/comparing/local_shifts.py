"""Undoing what one motion cannot: places of a reference that lie a few pixels beside those of an aligned picture.

A line-scan camera sees a bent or unevenly moved board stretched in parts. Squares of the reference are moved to where
they fit the picture, if that explains most of what differs there; between squares the shifts change smoothly.
"""

from __future__ import annotations

import cv2
import numpy as np

from coe.comparing.motion import Pixels, grey_of, lasting

SQUARE = 64
"""The side in pixels of a square that is moved as a whole: larger than most defects, so none is followed."""
MOST, SHARE = 10, 1 / 64
"""The most by which a square is moved in each direction: pixels, and the share of the picture's shorter side."""
SEEN_AROUND = 16
"""The pixels around a square that must fit, too."""
LEAST_DIFFERENT = 12
"""Squares in which fewer pixels differ, thin lines not counted, stay where they are."""
EXPLAINED = 0.5
"""The share of the differences of a square that a shift must take away: a defect differs after any shift."""
_STIFFNESS = 2.0
"""For each pixel of a shift so many more pixels must fit: along an edge any shift fits."""


def settle(picture: Pixels, reference: Pixels, spread: Pixels) -> tuple[Pixels, Pixels]:
    """Return a reference and its spread with their squares moved to where they lie in an aligned picture.

    Picture and reference are (H, W, 3), the spread is (H, W), all uint8. The reference and the spread themselves are
    returned if no square has to be moved, or if that explains nothing. What lies at another place than in the
    reference by no more than the reach of a square, and a square wide, is not seen as a difference any more.
    """
    height, width = spread.shape
    reach = min(MOST, int(min(height, width) * SHARE))
    if not reach:
        return reference, spread
    rows, columns = (max(1, round(side / SQUARE)) for side in (height, width))
    seen, wanted = grey_of(picture), grey_of(reference)
    different = lasting(seen, wanted)
    share = cv2.resize(different.astype(np.float32), (columns, rows), interpolation=cv2.INTER_AREA)
    shifts = np.zeros((rows, columns, 2), np.float32)
    for row, column in np.argwhere(share * (height * width / (rows * columns)) >= LEAST_DIFFERENT).tolist():
        shifts[row, column] = _shift(seen, wanted, (row, column), (rows, columns), reach)
    if not shifts.any():
        return reference, spread
    right, down = cv2.split(cv2.resize(shifts, (width, height), interpolation=cv2.INTER_LINEAR))
    right += np.arange(width, dtype=np.float32)
    down += np.arange(height, dtype=np.float32)[:, None]
    both = cv2.merge([*cv2.split(reference), spread])
    *colours, spreads = cv2.split(cv2.remap(both, right, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
    moved = np.asarray(cv2.merge(colours), np.uint8)
    remaining = lasting(seen, grey_of(moved))
    if cv2.countNonZero(remaining) >= cv2.countNonZero(different):
        return reference, spread
    return moved, np.asarray(spreads, np.uint8)


def _shift(
    seen: Pixels, wanted: Pixels, place: tuple[int, int], grid: tuple[int, int], reach: int
) -> tuple[float, float]:
    """Return the shift (right, down) at which a square of the picture is found in the reference; (0, 0) for none."""
    spans, inner = [], []
    for index, count, side in zip(place, grid, wanted.shape, strict=True):
        low = max(reach, side * index // count - SEEN_AROUND)
        high = min(side - reach, side * (index + 1) // count + SEEN_AROUND)
        spans.append(slice(low - reach, high + reach))
        inner.append(slice(low, high))
    errors = cv2.matchTemplate(wanted[tuple(spans)], seen[tuple(inner)], cv2.TM_SQDIFF) / 255.0**2
    away = np.arange(-reach, reach + 1) ** 2
    cost = errors + _STIFFNESS * np.sqrt(away[:, None] + away[None, :])
    row, column = divmod(int(cost.argmin()), cost.shape[1])
    if errors[row, column] > (1 - EXPLAINED) * errors[reach, reach]:
        return 0.0, 0.0
    return float(column - reach), float(row - reach)
