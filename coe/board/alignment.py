"""Bringing a picture into the frame of its reference, and telling how well it fits.

A shift is found by phase correlation (Kuglin and Hines, 1975). What is left, a small turn or another scale, is found by
maximising the correlation coefficient (ECC: Evangelidis and Psarakis, 2008). The number of steps is bounded, and so is
the time.

The file is long because it states the reason for each limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.float64]
_Grey = NDArray[np.float32]

LEVELS = ((128, 25), (256, 6))
"""Where a motion is searched, coarse then fine: the longer side of the pictures in pixels, the most steps of ECC."""
ENOUGH = 0.97
"""With at least this fit, no turn is searched if no quarter of the picture moves: a warp would only blur it."""
LEAST_SIDE = 16
"""No picture is made so small that its shorter side has fewer pixels: the picture of a strip keeps its details."""
_FEWEST = 4
"""A picture whose shorter side has fewer pixels is not compared by quarters, and is not moved."""
STILL = 1.0
"""The shift in pixels under which a quarter of a picture does not move."""
BLUR = 5
"""The side in pixels of the blur with which ECC begins."""
STRETCH = 0.25
"""The most by which a warp may change a length; a picture that needs more shows something else."""
SKEW = 0.03
"""The most by which a warp may change lengths in one direction more than in another: parts are rigid. A warp that is
free to do so moves what differs at a border out of the picture, where the part shows little to align by."""
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
ASPECT = 0.02
"""The share by which the shapes of a picture and its reference may differ."""
_FLAT, _NOISE = 2.0, 8.0
"""A standard deviation in grey levels under which a picture shows nothing to align by; with noise it may be larger."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """A picture in the frame of its reference.

    `image` is (H, W, 3) uint8 RGB, of the reference's size; pixels that the picture does not show are the reference's.
    `seen` is the share of the reference that the picture shows. `fit` is the correlation coefficient of both in grey,
    from -1 to 1, with 1 for equal pictures. `to_picture` (2, 3) maps a point (x, y, 1) of the reference to the picture.
    """

    image: Pixels
    seen: float
    fit: float
    to_picture: Numbers


def same_shape(image: Pixels, reference: Pixels) -> bool:
    """Tell whether a picture and its reference, each (H, W, 3), have the same aspect; only then they can be aligned."""
    (height, width), (wanted_height, wanted_width) = image.shape[:2], reference.shape[:2]
    return bool(abs(width * wanted_height / (height * wanted_width) - 1) <= ASPECT)


def align(image: Pixels, reference: Pixels) -> Alignment:
    """Bring a picture (h, w, 3) into the frame of its reference (H, W, 3), both uint8 RGB of the same aspect.

    The simplest motion that fits is taken: none, a shift, then a shift with a turn and a scale. If none fits well, that
    after which the fewest pixels differ is returned, with its fit: the caller decides whether that is enough. Two
    motions are compared where both show the reference: a motion that hides a defect explains nothing.
    """
    height, width = reference.shape[:2]
    resized = np.diag([image.shape[1] / width, image.shape[0] / height, 1.0])
    if image.shape != reference.shape:
        image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    sizes = _Sizes(_grey(image), _grey(reference))
    best: _Candidate | None = None
    for motion in _motions(sizes):
        candidate = _moved(sizes, motion)
        if best is None or candidate.is_better_than(best):
            best = candidate
        if best.seen < LEAST_SEEN:
            continue
        if _is_turned(motion):
            if best.fit >= LEAST_FIT:
                break
        elif best.fit >= ENOUGH and _is_still(best.grey, sizes):
            break
    assert best is not None
    whole = resized @ np.vstack((best.motion, (0.0, 0.0, 1.0)))
    return Alignment(_filled(image, reference, best.motion, best.shown), best.seen, best.fit, whole[:2])


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
    if deviations[0] < _FLAT:
        return 0.0
    # The mean square of the difference holds the covariance, and OpenCV finds it without copies in floating point.
    square = cv2.norm(grey, reference, cv2.NORM_L2SQR, mask=shown) / count - (means[0] - means[1]) ** 2
    return float((deviations[0] ** 2 + deviations[1] ** 2 - square) / (2 * deviations[0] * deviations[1]))


def _is_flat(grey: Pixels, deviation: float) -> bool:
    """Tell whether a picture (H, W) with this standard deviation shows a single grey, under the noise of a camera."""
    if deviation < _FLAT or deviation >= _NOISE:
        return deviation < _FLAT
    # What is left of a mark, however thin, is far more than what is left of noise.
    smooth = cv2.blur(grey, (BLUR, BLUR))
    return float(np.ptp(smooth)) < 2 * _NOISE


class _Sizes:
    """A picture and its reference in grey, (H, W) uint8, and both made smaller, each size once."""

    def __init__(self, grey: Pixels, reference: Pixels) -> None:
        self.grey = grey
        self.reference = reference
        self._smaller: dict[int, tuple[_Grey, _Grey]] = {}

    def scale(self, side: int) -> float:
        """Return the scale at which the pictures have at most `side` pixels a side, or `LEAST_SIDE` the shorter."""
        height, width = self.reference.shape
        return float(min(1.0, max(side / max(height, width), LEAST_SIDE / min(height, width))))

    def at(self, side: int) -> tuple[_Grey, _Grey]:
        """Return the picture and its reference at the scale of a side."""
        if side not in self._smaller:
            scale = self.scale(side)
            self._smaller[side] = _smaller(self.grey, scale), _smaller(self.reference, scale)
        return self._smaller[side]


@dataclass(frozen=True, slots=True)
class _Candidate:
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

    def is_better_than(self, other: _Candidate) -> bool:
        """Tell whether it explains the picture better than a simpler motion."""
        if self.is_comparable != other.is_comparable:
            return self.is_comparable
        both = np.asarray(cv2.bitwise_and(self.shown, other.shown), np.uint8)
        mine, its = (cv2.countNonZero(cv2.bitwise_and(picture.different, both)) for picture in (self, other))
        hidden = cv2.countNonZero(other.shown) - cv2.countNonZero(both)
        away = self._turned_away(other, both)
        explained = its - mine - away
        if explained > HIDING * hidden:
            return True
        if explained < 0 or away:
            return False
        if hidden <= SLIVER * both.size:
            return self.fit > other.fit
        lost = cv2.countNonZero(other.different) - its
        if _is_turned(self.motion) and hidden <= MARGIN * both.size and lost <= LOST * explained:
            fit, other_fit = (fit_of(picture.grey, self.reference, both) for picture in (self, other))
            return 1 - fit < REMAINING * (1 - other_fit)
        # In a regular pattern a long shift may fit as well, but it shows less of the reference.
        return explained == 0 and (self.seen, self.fit) > (other.seen, other.fit)

    def _turned_away(self, other: _Candidate, both: Pixels) -> int:
        """Return how many pixels of places that differ after the other motion leave the reference's frame in this.

        They are not explained: what the picture shows there is compared with nothing any more. A place counts if most
        of it leaves, by more than two pixels: the border of a misaligned picture is a strip that differs, too.
        """
        size = (self.grey.shape[1], self.grey.shape[0])
        in_picture = cv2.warpAffine(np.ones_like(both), self.motion, size, flags=cv2.INTER_NEAREST)
        in_picture = cv2.dilate(in_picture, _AROUND)
        in_others = cv2.warpAffine(in_picture, other.motion, size, flags=cv2.INTER_NEAREST | _BACK)
        differing = cv2.bitwise_and(other.different, both)
        leaving = cv2.subtract(differing, in_others)
        if not cv2.countNonZero(leaving):
            return 0
        count, places = cv2.connectedComponents(differing)
        whole, gone = (np.bincount(places[pixels > 0], minlength=count) for pixels in (differing, leaving))
        return int(gone[gone > whole / 2].sum())

    @property
    def is_comparable(self) -> bool:
        """Tell whether it fits and shows enough: a long shift may fit well where it shows the reference."""
        return self.seen >= LEAST_SEEN and self.fit >= LEAST_FIT


def _motions(sizes: _Sizes) -> Iterator[Numbers]:
    """Yield motions (2, 3) from the reference to the picture, the simplest first; later ones are found when needed."""
    shift, still = _shift(sizes), np.eye(2, 3)
    starts = (still,) if np.array_equal(shift, still) else (shift, still)
    yield from starts
    for start in starts:
        if (motion := _turned(sizes, start)) is not None:
            yield motion


def lasting_differences(image: Pixels, reference: Pixels) -> int:
    """Return how many pixels of two pictures of one size, (H, W, 3), differ and last through an opening."""
    return int(cv2.countNonZero(lasting(_grey(image), _grey(reference))))


def lasting(grey: Pixels, reference: Pixels) -> Pixels:
    """Return 1 where two pictures in grey, (H, W) uint8, differ and that lasts through an opening, else 0."""
    differing = (cv2.absdiff(grey, reference) > LEVELS_APART).astype(np.uint8)
    return np.asarray(cv2.morphologyEx(differing, cv2.MORPH_OPEN, OPENING), np.uint8)


def _is_turned(motion: Numbers) -> bool:
    return not np.array_equal(motion[:, :2], np.eye(2))


def _is_still(grey: Pixels, sizes: _Sizes) -> bool:
    """Tell whether each quarter of a picture lies where it does in the reference; quarters that show nothing do."""
    if min(sizes.reference.shape) < _FEWEST:
        return True
    scale = sizes.scale(LEVELS[-1][0])
    small, wanted = _smaller(grey, scale), sizes.at(LEVELS[-1][0])[1]
    height, width = (length // 2 for length in small.shape)
    window = cv2.createHanningWindow((width, height), cv2.CV_32F)
    for top, left in ((0, 0), (0, width), (height, 0), (height, width)):
        quarters = [part[top : top + height, left : left + width] for part in (wanted, small)]
        if min(float(quarter.std()) for quarter in quarters) >= _FLAT:
            (right, down), _ = cv2.phaseCorrelate(quarters[0].copy(), quarters[1].copy(), window)
            if max(abs(right), abs(down)) > STILL * scale:
                return False
    return True


def _shift(sizes: _Sizes) -> Numbers:
    """Return the motion that is a shift by whole pixels; no motion if one of the pictures shows nothing."""
    small, wanted = sizes.at(LEVELS[-1][0])
    scale = sizes.scale(LEVELS[-1][0])
    if min(wanted.shape) < _FEWEST or min(float(small.std()), float(wanted.std())) < _FLAT:
        return np.eye(2, 3)
    window = cv2.createHanningWindow((wanted.shape[1], wanted.shape[0]), cv2.CV_32F)
    # Phase correlation writes its window into the pictures that it is given.
    (right, down), _ = cv2.phaseCorrelate(wanted.copy(), small.copy(), window)
    return np.array([[1.0, 0.0, round(right / scale)], [0.0, 1.0, round(down / scale)]])


def _turned(sizes: _Sizes, start: Numbers) -> Numbers | None:
    """Return a motion with a turn and a scale, searched from `start`; None if there is none, or too great a scale."""
    motion = start
    for side, steps in LEVELS:
        small, wanted = sizes.at(side)
        scale = sizes.scale(side)
        if min(float(small.std()), float(wanted.std())) < _FLAT:
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


def _moved(sizes: _Sizes, motion: Numbers) -> _Candidate:
    grey, reference = sizes.grey, sizes.reference
    whole = np.ones(reference.shape, np.uint8)
    if np.array_equal(motion, np.eye(2, 3)):
        return _Candidate(motion, grey, reference, whole, lasting(grey, reference), 1.0, fit_of(grey, reference))
    shown = np.asarray(cv2.warpAffine(whole, motion, whole.shape[::-1], flags=cv2.INTER_NEAREST | _BACK), np.uint8)
    grey = _filled(grey, reference, motion, shown)
    # The fit is of what is seen: pixels that were filled in would fit by themselves.
    count = cv2.countNonZero(shown)
    fit = fit_of(grey, reference, shown) if count else 0.0
    return _Candidate(motion, grey, reference, shown, lasting(grey, reference), count / shown.size, fit)


def _filled(image: Pixels, reference: Pixels, motion: Numbers, shown: Pixels) -> Pixels:
    """Return the moved picture, in grey or in colour, and the reference where the picture does not show it."""
    if np.array_equal(motion, np.eye(2, 3)):
        return image
    size = (reference.shape[1], reference.shape[0])
    moved = cv2.warpAffine(image, motion, size, flags=cv2.INTER_LINEAR | _BACK, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(cv2.copyTo(reference, 1 - shown, moved), np.uint8)


def _grey(image: Pixels) -> Pixels:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def _smaller(grey: Pixels, scale: float) -> _Grey:
    if scale < 1:
        grey = np.asarray(cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
    return grey.astype(np.float32)
