"""Bringing a picture into the frame of its reference, and telling how well it fits.

A shift is found by phase correlation (Kuglin and Hines, 1975). What is left, a small turn or another scale, is found by
maximising the correlation coefficient (ECC: Evangelidis and Psarakis, 2008). The number of steps is bounded, and so is
the time. What repeats itself, as a row of contacts, fits after several motions: `coe.comparing.rivals` has the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from coe.comparing.motion import (
    BLUR,
    FLAT,
    LEAST_FIT,
    LEAST_SEEN,
    Candidate,
    ImagePyramid,
    Numbers,
    Pixels,
    filled,
    grey_of,
    is_turned,
    moved,
    smaller,
)
from coe.comparing.rivals import chosen

LEVELS = ((128, 25), (256, 6))
"""Where a motion is searched, coarse then fine: the longer side of the pictures in pixels, the most steps of ECC."""
ENOUGH = 0.97
"""With at least this fit, no turn is searched if no quarter of the picture moves: a warp would only blur it."""
_FEWEST = 4
"""A picture whose shorter side has fewer pixels is not compared by quarters, and is not moved."""
STILL = 1.0
"""The shift in pixels under which a quarter of a picture does not move."""
STRETCH = 0.25
"""The most by which a warp may change a length; a picture that needs more shows something else."""
SKEW = 0.03
"""The most by which a warp may change lengths in one direction more than in another: parts are rigid. A warp that is
free to do so moves what differs at a border out of the picture, where the part shows little to align by."""
ASPECT = 0.02
"""The share by which the shapes of a picture and its reference may differ."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """A picture in the frame of its reference.

    `image` is (H, W, 3) uint8 RGB, of the reference's size; pixels that the picture does not show are the reference's.
    `seen` is the share of the reference that the picture shows. `fit` is the correlation coefficient of both in grey,
    from -1 to 1, with 1 for equal pictures. `to_picture` (2, 3) maps a point (x, y, 1) of the reference to the picture.
    `is_certain` is False if the picture fits after another motion, too, and that shows a difference which this hides.
    """

    image: Pixels
    seen: float
    fit: float
    to_picture: Numbers
    is_certain: bool = True


def same_shape(image: Pixels, reference: Pixels) -> bool:
    """Tell whether a picture and its reference, each (H, W, 3), have the same aspect; only then they can be aligned."""
    (height, width), (wanted_height, wanted_width) = image.shape[:2], reference.shape[:2]
    return bool(abs(width * wanted_height / (height * wanted_width) - 1) <= ASPECT)


def align(image: Pixels, reference: Pixels) -> Alignment:
    """Bring a picture (h, w, 3) into the frame of its reference (H, W, 3), both uint8 RGB of the same aspect.

    The simplest motion that fits is taken: none, a shift, then a shift with a turn and a scale. If none fits well, that
    after which the fewest pixels differ is returned, with its fit: the caller decides whether that is enough. Two
    motions are compared where both show the reference: a motion that hides a defect explains nothing. What repeats
    itself fits after several motions: see `coe.comparing.rivals`.
    """
    height, width = reference.shape[:2]
    resized = np.diag([image.shape[1] / width, image.shape[0] / height, 1.0])
    if image.shape != reference.shape:
        image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    sizes = ImagePyramid(grey_of(image), grey_of(reference))
    best: Candidate | None = None
    for motion in _motions(sizes):
        candidate = moved(sizes, motion)
        if best is None or candidate.is_better_than(best):
            best = candidate
        if best.seen < LEAST_SEEN:
            continue
        if is_turned(motion):
            if best.fit >= LEAST_FIT:
                break
        elif best.fit >= ENOUGH and _is_still(best.grey, sizes):
            break
    assert best is not None
    best, is_certain = chosen(sizes, best)
    whole = resized @ np.vstack((best.motion, (0.0, 0.0, 1.0)))
    return Alignment(filled(image, reference, best.motion, best.shown), best.seen, best.fit, whole[:2], is_certain)


def _motions(sizes: ImagePyramid) -> Iterator[Numbers]:
    """Yield motions (2, 3) from the reference to the picture, the simplest first; later ones are found when needed."""
    shift, still = _shift(sizes), np.eye(2, 3)
    starts = (still,) if np.array_equal(shift, still) else (shift, still)
    yield from starts
    for start in starts:
        if (motion := _turned(sizes, start)) is not None:
            yield motion


def _is_still(grey: Pixels, sizes: ImagePyramid) -> bool:
    """Tell whether each quarter of a picture lies where it does in the reference; quarters that show nothing do."""
    if min(sizes.reference.shape) < _FEWEST:
        return True
    scale = sizes.scale(LEVELS[-1][0])
    small, wanted = smaller(grey, scale), sizes.at(LEVELS[-1][0])[1]
    height, width = (length // 2 for length in small.shape)
    window = cv2.createHanningWindow((width, height), cv2.CV_32F)
    for top, left in ((0, 0), (0, width), (height, 0), (height, width)):
        quarters = [part[top : top + height, left : left + width] for part in (wanted, small)]
        if min(float(quarter.std()) for quarter in quarters) >= FLAT:
            (right, down), _ = cv2.phaseCorrelate(quarters[0].copy(), quarters[1].copy(), window)
            if max(abs(right), abs(down)) > STILL * scale:
                return False
    return True


def _shift(sizes: ImagePyramid) -> Numbers:
    """Return the motion that is a shift by whole pixels; no motion if one of the pictures shows nothing."""
    small, wanted = sizes.at(LEVELS[-1][0])
    scale = sizes.scale(LEVELS[-1][0])
    if min(wanted.shape) < _FEWEST or min(float(small.std()), float(wanted.std())) < FLAT:
        return np.eye(2, 3)
    window = cv2.createHanningWindow((wanted.shape[1], wanted.shape[0]), cv2.CV_32F)
    # Phase correlation writes its window into the pictures that it is given.
    (right, down), _ = cv2.phaseCorrelate(wanted.copy(), small.copy(), window)
    return np.array([[1.0, 0.0, round(right / scale)], [0.0, 1.0, round(down / scale)]])


def _turned(sizes: ImagePyramid, start: Numbers) -> Numbers | None:
    """Return a motion with a turn and a scale, searched from `start`; None if there is none, or too great a scale."""
    motion = start
    for side, steps in LEVELS:
        small, wanted = sizes.at(side)
        scale = sizes.scale(side)
        if min(float(small.std()), float(wanted.std())) < FLAT:
            return None
        criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, steps, 1e-5)
        everywhere = np.full(wanted.shape, 255, np.uint8)
        begin = _at_scale(motion, scale).astype(np.float32)
        try:
            _, warp = cv2.findTransformECC(wanted, small, begin, cv2.MOTION_AFFINE, criteria, everywhere, BLUR)
        except cv2.error:  # it found no motion
            return None
        motion = _at_scale(warp.astype(np.float64), 1 / scale)
    stretches = np.linalg.svd(motion[:, :2])[1]
    plausible = np.abs(stretches - 1).max() <= STRETCH and stretches[0] <= (1 + SKEW) * stretches[1]
    return motion if plausible else None


def _at_scale(motion: Numbers, scale: float) -> Numbers:
    """Return a motion between pictures as the motion between the same pictures enlarged by `scale`."""
    offset = (motion[:, :2] @ np.ones(2) - 1) * (0.5 * scale - 0.5)  # the middle of the first pixel stays at 0
    return np.hstack((motion[:, :2], (motion[:, 2] * scale - offset)[:, None]))
