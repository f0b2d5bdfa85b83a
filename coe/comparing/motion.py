"""A picture after a motion into the frame of its reference: what fits, what differs, and which motion explains more."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.float64]
Grey = NDArray[np.float32]

BLUR = 5
"""The side in pixels of the blur with which noise is taken away."""
LEAST_SIDE = 16
"""No picture is made so small that its shorter side has fewer pixels: the picture of a strip keeps its details."""
LEAST_FIT, LEAST_SEEN = 0.75, 0.9
"""Under this fit, or with less of the reference in the picture, a picture cannot be compared. Of DeepPCB's training
pairs the worst fits by 0.92; pictures of other boards mostly fit by less than 0.2."""
HIDING = 0.05
"""A motion must explain this many differing pixels for each pixel of the reference that it hides: a defect that it
moves out of the picture is seldom a larger share of the strip that leaves with it."""
SLIVER = 0.01
"""The share of the reference that a motion may hide for a better fit alone: a margin of a few pixels."""
REMAINING, MARGIN, LOST = 0.5, 0.07, 0.5
"""A motion may hide up to MARGIN of the reference if it leaves at most REMAINING of what the fit lacks, and hides no
more differing pixels than LOST of those that it explains. In a small picture a turn of a degree leaves thin lines. They
do not count as differing pixels, but without the turn the fit is much better."""
_AROUND = np.ones((5, 5), np.uint8)
"""Two pixels to each side."""
LEVELS_APART = 40
"""Pixels differ if they are more than this many grey levels apart."""
OPENING = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
"""What differs must last through an opening with this: thin lines are edges that lie a fraction of a pixel apart."""
_BACK = cv2.WARP_INVERSE_MAP
FLAT, _NOISE = 2.0, 8.0
"""A standard deviation in grey levels under which a picture shows nothing to align by; with noise it may be larger."""


def fit_of(grey: Pixels, reference: Pixels, shown: Pixels | None = None) -> float:
    """Return the correlation coefficient, -1 to 1, of two grey pictures (H, W) uint8 where `shown` (H, W) is not 0.

    A reference of a single grey, but for noise, lies right at any place: there the fit is the share of pixels that do
    not differ, so that a scratch is a difference. A picture of a single grey fits no other reference.
    """
    means, deviations = [], []
    for pixels in (grey, reference):
        mean, deviation = cv2.meanStdDev(pixels, mask=shown)
        means.append(float(mean[0, 0]))
        deviations.append(float(deviation[0, 0]))
    count = grey.size if shown is None else cv2.countNonZero(shown)
    if _is_flat(reference, deviations[1]):
        different = (cv2.absdiff(grey, reference) > LEVELS_APART).astype(np.uint8)
        return 1 - cv2.countNonZero(different if shown is None else cv2.bitwise_and(different, shown)) / count
    if deviations[0] < FLAT:
        return 0.0
    # The mean square of the difference holds the covariance, and OpenCV finds it without copies in floating point.
    square = cv2.norm(grey, reference, cv2.NORM_L2SQR, mask=shown) / count - (means[0] - means[1]) ** 2
    return float((deviations[0] ** 2 + deviations[1] ** 2 - square) / (2 * deviations[0] * deviations[1]))


def _is_flat(grey: Pixels, deviation: float) -> bool:
    """Tell whether a picture (H, W) with this standard deviation shows a single grey, under the noise of a camera."""
    if deviation < FLAT or deviation >= _NOISE:
        return deviation < FLAT
    # What is left of a mark, however thin, is far more than what is left of noise.
    smooth = cv2.blur(grey, (BLUR, BLUR))
    return float(np.ptp(smooth)) < 2 * _NOISE


class ImagePyramid:
    """A picture and its reference in grey, (H, W) uint8, and both made smaller, each size once."""

    def __init__(self, grey: Pixels, reference: Pixels) -> None:
        self.grey = grey
        self.reference = reference
        self._smaller: dict[int, tuple[Grey, Grey]] = {}

    def scale(self, side: int) -> float:
        """Return the scale at which the pictures have at most `side` pixels a side, or `LEAST_SIDE` the shorter."""
        height, width = self.reference.shape
        return float(min(1.0, max(side / max(height, width), LEAST_SIDE / min(height, width))))

    def at(self, side: int) -> tuple[Grey, Grey]:
        """Return the picture and its reference at the scale of a side."""
        if side not in self._smaller:
            scale = self.scale(side)
            self._smaller[side] = smaller(self.grey, scale), smaller(self.reference, scale)
        return self._smaller[side]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A picture after a motion, in grey.

    `shown` (H, W) is not 0 where it shows the `reference` (H, W), and `seen` is the share; `different` (H, W) is not 0
    where it differs there.
    """

    motion: Numbers
    grey: Pixels
    reference: Pixels
    shown: Pixels
    different: Pixels
    seen: float
    fit: float

    def is_better_than(self, other: Candidate) -> bool:
        """Tell whether it explains the picture better than a simpler motion."""
        if self.is_comparable != other.is_comparable:
            return self.is_comparable
        both = np.asarray(cv2.bitwise_and(self.shown, other.shown), np.uint8)
        mine, its = (cv2.countNonZero(cv2.bitwise_and(picture.different, both)) for picture in (self, other))
        hidden = cv2.countNonZero(other.shown) - cv2.countNonZero(both)
        away = self._turned_away(other, both)
        explained = its - mine - away
        if explained > HIDING * hidden and explained >= away:
            return True
        if explained < 0 or away:
            return False
        if hidden <= SLIVER * both.size:
            return self.fit > other.fit
        lost = cv2.countNonZero(other.different) - its
        if is_turned(self.motion) and hidden <= MARGIN * both.size and lost <= LOST * explained:
            return self._fits_far_better(other, both)
        # In a regular pattern a long shift may fit as well, but it shows less of the reference.
        return explained == 0 and (self.seen, self.fit) > (other.seen, other.fit)

    def _turned_away(self, other: Candidate, both: Pixels) -> int:
        """Return how many pixels of places that differ after the other motion leave the reference's frame in this."""
        # They are not explained: what the picture shows there is compared with nothing any more. A place counts if any
        # of it leaves: what is left of a narrow one is a thin line. But the border of a misaligned picture is a strip
        # that differs, too: if this motion fits far better elsewhere, a place counts if most leaves, by more than two
        # pixels.
        size = (self.grey.shape[1], self.grey.shape[0])
        in_picture = np.asarray(
            cv2.warpAffine(np.ones_like(both), self.motion, size, flags=cv2.INTER_NEAREST), np.uint8
        )
        differing = cv2.bitwise_and(other.different, both)
        count, numbers = cv2.connectedComponents(differing)
        places = np.asarray(numbers, np.int32)
        gone = _gone(in_picture, other, places, count)
        if not gone.any():
            return 0
        leaving = np.asarray(np.isin(places, np.flatnonzero(gone)), np.uint8)
        elsewhere = cv2.bitwise_and(both, 1 - cv2.dilate(leaving, _AROUND))
        if not self._fits_far_better(other, np.asarray(elsewhere, np.uint8)):
            return int(gone.sum())
        gone = _gone(np.asarray(cv2.dilate(in_picture, _AROUND), np.uint8), other, places, count)
        return int(gone[gone > np.bincount(places.ravel(), minlength=count) / 2].sum())

    def _fits_far_better(self, other: Candidate, where: Pixels) -> bool:
        if not cv2.countNonZero(where):
            return False
        fit, other_fit = (fit_of(picture.grey, self.reference, where) for picture in (self, other))
        return 1 - fit < REMAINING * (1 - other_fit)

    @property
    def is_comparable(self) -> bool:
        """Tell whether it fits and shows enough: a long shift may fit well where it shows the reference."""
        return self.seen >= LEAST_SEEN and self.fit >= LEAST_FIT


def _gone(in_picture: Pixels, other: Candidate, places: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Return how many pixels of each place, numbered after another motion, do not lie in `in_picture` (h, w)."""
    in_others = cv2.warpAffine(in_picture, other.motion, places.shape[::-1], flags=cv2.INTER_NEAREST | _BACK)
    gone = np.bincount(places[in_others == 0], minlength=count)
    gone[0] = 0
    return gone


def lasting_differences(image: Pixels, reference: Pixels) -> int:
    """Return how many pixels of two pictures of one size, (H, W, 3), differ and last through an opening."""
    return int(cv2.countNonZero(lasting(grey_of(image), grey_of(reference))))


def lasting(grey: Pixels, reference: Pixels) -> Pixels:
    """Return 1 where two pictures in grey, (H, W) uint8, differ and that lasts through an opening, else 0."""
    differing = (cv2.absdiff(grey, reference) > LEVELS_APART).astype(np.uint8)
    return np.asarray(cv2.morphologyEx(differing, cv2.MORPH_OPEN, OPENING), np.uint8)


def is_turned(motion: Numbers) -> bool:
    """Tell whether a motion (2, 3) is more than a shift."""
    return not np.array_equal(motion[:, :2], np.eye(2))


def moved(sizes: ImagePyramid, motion: Numbers) -> Candidate:
    """Return the picture after a motion (2, 3), compared with its reference."""
    grey, reference = sizes.grey, sizes.reference
    whole = np.ones(reference.shape, np.uint8)
    if np.array_equal(motion, np.eye(2, 3)):
        return Candidate(motion, grey, reference, whole, lasting(grey, reference), 1.0, fit_of(grey, reference))
    shown = np.asarray(cv2.warpAffine(whole, motion, whole.shape[::-1], flags=cv2.INTER_NEAREST | _BACK), np.uint8)
    grey = filled(grey, reference, motion, shown)
    # The fit is of what is seen: pixels that were filled in would fit by themselves.
    count = cv2.countNonZero(shown)
    fit = fit_of(grey, reference, shown) if count else 0.0
    return Candidate(motion, grey, reference, shown, lasting(grey, reference), count / shown.size, fit)


def filled(image: Pixels, reference: Pixels, motion: Numbers, shown: Pixels) -> Pixels:
    """Return the moved picture, in grey or in colour, and the reference where the picture does not show it."""
    if np.array_equal(motion, np.eye(2, 3)):
        return image
    size = (reference.shape[1], reference.shape[0])
    moved = cv2.warpAffine(image, motion, size, flags=cv2.INTER_LINEAR | _BACK, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(cv2.copyTo(reference, 1 - shown, moved), np.uint8)


def grey_of(image: Pixels) -> Pixels:
    """Return a picture (H, W, 3) RGB in grey, (H, W)."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def smaller(grey: Pixels, scale: float) -> Grey:
    """Return a picture in grey (H, W) at a scale of at most 1."""
    if scale < 1:
        grey = np.asarray(cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
    return grey.astype(np.float32)
