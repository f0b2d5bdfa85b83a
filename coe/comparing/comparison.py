"""A picture against its reference: both in one frame, and by how much they differ.

A picture that cannot be compared says why. The difference that a report or a page shows is that which experts see.

A line-scan camera sees a bent or unevenly moved board stretched in parts, which no one motion undoes. `settle` moves
squares of the reference to where they fit the picture, if that explains most of what differs there; between squares the
shifts change smoothly.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from coe.comparing.alignment import Alignment, align, same_shape
from coe.comparing.motion import LEAST_FIT, LEAST_SEEN, LEVELS_APART, Pixels, grey_of, lasting

LEAST_SIDE = 0.5
"""The least side of a picture, as a share of its reference's: a picture of a few pixels, enlarged, shows no defect."""
COLOURED = 0.1
"""A picture has colours if at this share of its pixels the channels are more than `LEVELS_APART` grey levels apart."""
_GREY = 2
"""A picture is grey if its channels are nowhere further apart than this; a JPEG of a grey picture may round so."""
_LIT = 0.001
"""A picture with fewer values above `LEVELS_APART` than this share is dark."""
_TWICE = (
    "it fits its reference in two places, and only one of them shows a defect; leave a wider margin around the part"
)
_ONE_CAMERA = "take both with one camera, in one mode"
_SAMPLED = 4
"""Colours are looked at in every so many pixels of each direction, and light in squares of so many."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A picture in the frame of its reference.

    `reference` (H, W, 3) has its squares where the picture shows them, and `difference` (H, W) is that of the colour
    channel that differs most, less the spread of good parts; both are uint8. They are None if the picture cannot be
    compared, and `doubt` then says why; there is no alignment if none was tried.
    """

    alignment: Alignment | None = None
    reference: Pixels | None = None
    difference: Pixels | None = None
    doubt: str = ""


def compare(image: Pixels, reference: Pixels, spread: Pixels | None = None) -> Comparison:
    """Align a picture (h, w, 3) with its reference (H, W, 3), both uint8 RGB, and compare them.

    `spread` (H, W) uint8 is by how many grey levels good parts vary.
    """
    if doubt := _other_size(image, reference):
        return Comparison(doubt=doubt)
    for pixels, words in ((reference, "its reference is"), (image, "it is")):
        if is_dark(pixels):
            return Comparison(doubt=f"{words} dark; was the light on?")
    alignment = align(image, reference)
    if not alignment.fit >= LEAST_FIT:
        doubt = f"it does not fit its reference: {alignment.fit:.2f}, at least {LEAST_FIT:g}"
        return Comparison(alignment, doubt=doubt)
    if alignment.seen < LEAST_SEEN:
        doubt = f"it shows only {alignment.seen:.0%} of its reference, not {LEAST_SEEN:.0%}"
        return Comparison(alignment, doubt=doubt)
    if not alignment.is_certain:
        return Comparison(alignment, doubt=_TWICE)
    if doubt := _other_colours(image, reference):
        return Comparison(alignment, doubt=doubt)
    if spread is None:
        spread = np.zeros(reference.shape[:2], np.uint8)
    return compare_aligned(alignment, reference, spread)


def compare_aligned(alignment: Alignment, reference: Pixels, spread: Pixels) -> Comparison:
    """Compare a picture that lies in the frame of a reference (H, W, 3); for `spread` see `compare`."""
    wanted, spread = settle(alignment.image, reference, spread)
    red, green, blue = cv2.split(cv2.absdiff(alignment.image, wanted))
    largest = cv2.max(cv2.max(red, green), blue)
    return Comparison(alignment, wanted, np.asarray(cv2.subtract(largest, spread), np.uint8))


def is_dark(image: Pixels) -> bool:
    """Tell whether a picture (H, W, 3) was taken without light: nothing that is missing in it could be a difference."""
    height, width = (max(1, side // _SAMPLED) for side in image.shape[:2])
    # Noise lifts single pixels.
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return bool((small > LEVELS_APART).mean() < _LIT)


def _other_size(image: Pixels, reference: Pixels) -> str:
    """Return a sentence if the picture has another aspect than its reference, or too few pixels, else ""."""
    if not same_shape(image, reference):
        return f"it is {_size(image)} pixels and its reference {_size(reference)}"
    if min(image.shape[:2]) < LEAST_SIDE * min(reference.shape[:2]):
        sizes = f"{_size(image)} pixels show too little of a reference of {_size(reference)}"
        return f"{sizes}; give at least {LEAST_SIDE:.0%} of its size"
    return ""


def _other_colours(image: Pixels, reference: Pixels) -> str:
    """Return a sentence if one of the two is grey and the other has colours, else ""."""
    apart, wanted_apart = _channels_apart(image), _channels_apart(reference)
    if _is_grey(apart) and _has_colours(wanted_apart):
        return f"it is grey and its reference has colours; {_ONE_CAMERA}"
    if _has_colours(apart) and _is_grey(wanted_apart):
        return f"it has colours and its reference is grey; {_ONE_CAMERA}"
    return ""


def _is_grey(apart: Pixels) -> bool:
    return bool(apart.max() <= _GREY)


def _has_colours(apart: Pixels) -> bool:
    return bool((apart > LEVELS_APART).mean() >= COLOURED)


def _channels_apart(image: Pixels) -> Pixels:
    """Return by how much the channels of a picture differ, at every few pixels."""
    red, green, blue = cv2.split(np.ascontiguousarray(image[::_SAMPLED, ::_SAMPLED]))
    return np.asarray(cv2.subtract(cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue)), np.uint8)


def _size(image: Pixels) -> str:
    return f"{image.shape[1]} x {image.shape[0]}"


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
