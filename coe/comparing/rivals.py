"""Other motions after which a picture fits its reference nearly as well: a row of contacts, moved by one, does.

Such a motion may show a defect that the chosen motion hides: where the end contact is missing, the row moved by one
contact fits, and the contact at its other end has left the picture. No correlation tells a part whose end contact is
missing from a good part that lies one contact aside, so a person must look.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.comparing.motion import (
    FLAT,
    LEAST_SEEN,
    LEVELS_APART,
    Candidate,
    ImagePyramid,
    Numbers,
    Pixels,
    fit_of,
    is_turned,
    moved,
    smaller,
)

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
    others = [other for motion in _motions(sizes, best) if (other := moved(sizes, motion)).is_comparable]
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


def _motions(sizes: ImagePyramid, best: Candidate) -> Iterator[Numbers]:
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
