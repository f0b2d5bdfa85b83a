"""A picture against its reference: both in one frame, and by how much they differ.

A picture that cannot be compared says why. The difference that a report or a page shows is that which experts see.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from coe.comparing.alignment import Alignment, align, same_shape
from coe.comparing.local_shifts import settle
from coe.comparing.motion import LEAST_FIT, LEAST_SEEN, LEVELS_APART, Pixels

LEAST_SIDE = 0.5
"""The least side of a picture, as a share of its reference's: a picture of a few pixels, enlarged, shows no defect."""
COLOURED = 0.1
"""A picture has colours if at this share of its pixels the channels are more than `LEVELS_APART` grey levels apart."""
_GREY = 2
"""A picture is grey if its channels are nowhere further apart than this; a JPEG of a grey picture may round so."""
_LIT = 0.001
"""A picture with fewer values above `LEVELS_APART` than this share is dark."""
_TWICE = (
    "it fits its reference in two places, and in one of them a defect shows that the other moves out of sight; "
    "leave a wider margin around the part"
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
