"""Bringing a picture into the frame of its reference, and telling how well it fits.

A shift is found by phase correlation (Kuglin and Hines, 1975). What is left, a small turn or another scale, is found by
maximising the correlation coefficient (ECC: Evangelidis and Psarakis, 2008). The number of steps is bounded, and so is
the time.

What repeats itself, as a row of contacts, fits nearly as well after several motions (`chosen`). Such a rival may show a
defect that the best motion hides: where the end contact is missing, the row moved by one contact fits, and the contact
at its other end has left the picture. No correlation tells such a part from a good one that lies one contact aside, so
a person must look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.comparing.motion import (
    BLUR,
    FLAT,
    LEAST_FIT,
    LEAST_SEEN,
    LEVELS_APART,
    Candidate,
    ImagePyramid,
    Numbers,
    Pixels,
    filled,
    fit_of,
    grey_of,
    is_turned,
    moved,
    smaller,
)

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
    itself fits after several motions: see `chosen`.
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


PIXELS = 65_536
"""The most pixels of the pictures in which other motions are searched; larger pictures are made smaller."""
LEAST_MOVED = 3.0
"""A shorter motion in pixels hides thin lines alone, which do not count."""
ALIKE = 0.7
"""The least correlation of the aligned picture with its reference after another motion."""
MOST = 12
"""The most other motions that are looked at."""
HIDDEN = 2.0
"""So many differing pixels, for each pixel that the chosen motion hides, another motion may show."""
SIMILAR, NOISE, TURNED = 1.5, 0.005, 0.02
"""Two motions fit alike if the fit of one lacks at most so many times what that of the other does, give or take NOISE;
TURNED if the motion turns, because the turn was found for the chosen motion alone.
"""
MORE = 1.5
"""A motion that shows so many times the differences of the chosen one shows a further one."""


def chosen(sizes: ImagePyramid, best: Candidate) -> tuple[Candidate, bool]:
    """Return the best candidate, or another that shows as much and hides less; and whether the choice is certain."""
    if not best.is_comparable or _length(best) < LEAST_MOVED or not _may_hide(sizes, best):
        return best, True
    others = [other for motion in _rival_motions(sizes, best) if (other := moved(sizes, motion)).is_comparable]
    candidates = [best, *others]
    for other in others:
        if _shows_more(other, best):
            best = other
    return best, not any(_contradicts(other, best) for other in candidates if other is not best)


def _may_hide(sizes: ImagePyramid, best: Candidate) -> bool:
    """Tell whether the best motion shows a difference, or hides structure of the picture or of its reference."""
    if cv2.countNonZero(best.different):
        return True
    size = (best.grey.shape[1], best.grey.shape[0])
    covered = cv2.warpAffine(np.ones_like(best.shown), best.motion, size, flags=cv2.INTER_NEAREST)
    hidden = ((best.reference, best.shown == 0), (sizes.grey, np.asarray(covered) == 0))
    return any(bool(where.any() and _structure(grey, where).any()) for grey, where in hidden)


def _away(candidate: Candidate) -> Numbers:
    """Return by how many pixels, right and down, a motion moves the middle of the reference."""
    height, width = candidate.reference.shape
    middle = np.array([(width - 1) / 2, (height - 1) / 2])
    return np.asarray(candidate.motion[:, :2] @ middle + candidate.motion[:, 2] - middle)


def _length(candidate: Candidate) -> float:
    return float(np.hypot(*_away(candidate)))


def _shows_more(rival: Candidate, best: Candidate) -> bool:
    differing, before = (cv2.countNonZero(one.different) for one in (rival, best))
    if differing > before:
        return False
    hides, hidden = _hidden(rival, best), _hidden(best, rival)
    if differing + hides != before + hidden:
        return differing + hides < before + hidden
    return _length(rival) < _length(best) and 1 - rival.fit <= SIMILAR * (1 - best.fit)


def _contradicts(rival: Candidate, best: Candidate) -> bool:
    """Tell whether a rival that fits as well shows a difference that the best motion may have hidden."""
    differing, before = (cv2.countNonZero(one.different) for one in (rival, best))
    if not differing or differing < MORE * before:
        return False
    if rival.fit >= best.fit and _length(rival) < _length(best):
        return True
    noise = TURNED if is_turned(best.motion) else NOISE
    if 1 - _fit_elsewhere(rival) > SIMILAR * (1 - _fit_elsewhere(best)) + noise:
        return False
    # Two pixels of a contact may be left at the border. A bent contact lacks at one place, and is too much at another.
    core = cv2.erode(rival.different, np.ones((3, 3), np.uint8)) > 0
    brighter = rival.grey > rival.reference
    shown = max(np.count_nonzero(core & brighter), np.count_nonzero(core & ~brighter))
    hidden = _hidden(best, rival)
    return bool(hidden and shown <= HIDDEN * hidden)


def _fit_elsewhere(candidate: Candidate) -> float:
    """Return the fit where nothing differs."""
    alike = cv2.bitwise_and(candidate.shown, 1 - cv2.dilate(candidate.different, np.ones((5, 5), np.uint8)))
    mask = np.asarray(alike, np.uint8)
    return fit_of(candidate.grey, candidate.reference, mask) if cv2.countNonZero(mask) else 0.0


def _structure(grey: Pixels, hidden: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where a picture is not as most of what is hidden of it; one value for each hidden pixel."""
    values = grey[hidden].astype(np.int16)
    return np.asarray(np.abs(values - np.median(values)) > LEVELS_APART)


def _hidden(candidate: Candidate, other: Candidate) -> int:
    """Return how many pixels of structure the other motion shows alike in both, of which this hides one."""
    # This motion moves them out of the picture, or out of the reference's frame.
    size = (candidate.grey.shape[1], candidate.grey.shape[0])
    in_picture = cv2.warpAffine(np.ones_like(candidate.shown), candidate.motion, size, flags=cv2.INTER_NEAREST)
    covered = cv2.warpAffine(in_picture, other.motion, size, flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP)
    both = cv2.bitwise_and(candidate.shown, np.asarray(covered, np.uint8))
    hidden = cv2.bitwise_and(other.shown, 1 - both) > 0
    if not hidden.any():
        return 0
    alike = cv2.absdiff(other.reference, other.grey)[hidden] <= LEVELS_APART
    return int(np.count_nonzero(_structure(other.reference, hidden) & alike))


def _rival_motions(sizes: ImagePyramid, best: Candidate) -> Iterator[Numbers]:
    """Yield the other motions after which the picture correlates with its reference, those next to the best first."""
    # They turn and scale as the best does. Further motions than a picture may show are not searched.
    away, centred = _away(best), best.motion.copy()
    centred[:, 2] -= away
    wanted, seen = sizes.reference, sizes.grey
    if is_turned(centred):
        size = (wanted.shape[1], wanted.shape[0])
        turned = cv2.warpAffine(seen, centred, size, flags=cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE)
        seen = np.asarray(turned, np.uint8)
    scale = min(1.0, (PIXELS / wanted.size) ** 0.5)
    if scale < 1:
        wanted, seen = (np.asarray(smaller(one, scale), np.uint8) for one in (wanted, seen))
    down, right = (int(np.ceil((1 - LEAST_SEEN) * side)) for side in wanted.shape)
    inner = seen[down:-down, right:-right]
    if min(inner.shape) < 4 or inner.std() < FLAT:
        return
    alike = np.asarray(cv2.matchTemplate(wanted, inner, cv2.TM_CCOEFF_NORMED), np.float32)
    peaks = (alike == cv2.dilate(alike, np.ones((3, 3), np.uint8))) & (alike >= ALIKE)
    shifts = np.array([(right, down) - _peak(alike, *place) for place in np.argwhere(peaks).tolist()]).reshape(-1, 2)
    shifts = np.round(shifts / scale)
    apart = np.hypot(*(shifts - away).T)
    for place in np.argsort(apart, kind="stable")[: MOST + 1]:
        if apart[place] >= LEAST_MOVED:
            motion = centred.copy()
            motion[:, 2] += motion[:, :2] @ shifts[place]
            yield motion


def _peak(alike: NDArray[np.float32], row: int, column: int) -> Numbers:
    """Return the place, right and down, of the highest point of a parabola through a peak and those beside it."""
    place = []
    for line, at in ((alike[row], column), (alike[:, column], row)):
        before, top, after = line[max(0, at - 1)], line[at], line[min(len(line) - 1, at + 1)]
        bend = before - 2 * top + after
        place.append(at + float((before - after) / (2 * bend) if bend < 0 else 0))
    return np.array(place)
