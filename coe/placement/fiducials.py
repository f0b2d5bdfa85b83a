"""Fiducials in a picture: every disc near a point, and its middle to a fraction of a pixel.

A disc is found by normalised correlation with a drawn disc (Lewis, 1995), which no even change of the light disturbs.
Its middle is then the centre of gravity of the pixels weighted by how far each is disc rather than ring; a pixel at the
edge counts for its share, so the result is exact to a few hundredths of a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.placement.recipe_spec import Look

Grey = NDArray[np.uint8]
_Real = NDArray[np.float32]

LEAST_SCORE = 0.6
"""The least correlation of a fiducial with a drawn disc."""
MOST_DISCS = 24
"""The most discs near one point that are looked at, the best first."""
_RING = 0.8
"""Half the side of the drawn square around a disc, in diameters."""
_SEARCH_PX = 24.0
"""The diameter to which large discs are made smaller while they are searched."""
_DIAMETER = (0.8, 1.25)
"""The least and the greatest diameter of a disc, as a share of what it should be."""
LEAST_CONTRAST = 12.0
"""The least difference of disc and ring, in grey levels, of a disc by which a board is registered."""
_FAINT = 6.0
"""The same of a disc that is found at all: a fiducial that tarnished may have become so faint."""
_STEPS = 4


@dataclass(frozen=True, slots=True)
class Disc:
    """A disc in a picture: its middle and its diameter in pixels, and its correlation with a drawn disc.

    Pixel (0, 0) has its middle at 0.0, 0.0. `contrast` is the difference of disc and ring in grey levels.
    """

    x_px: float
    y_px: float
    diameter_px: float
    score: float
    contrast: float


def discs(grey: Grey, x_px: float, y_px: float, radius_px: float, diameter_px: float, look: Look) -> list[Disc]:
    """Return the discs of a diameter whose middle lies in a square around a point, the best first.

    `grey` is a picture (H, W) uint8, `radius_px` half the side of the square. Only discs with their ring wholly in the
    picture are found.
    """
    reach = radius_px + _RING * diameter_px + 2
    left, top = max(0, int(x_px - reach)), max(0, int(y_px - reach))
    right, bottom = min(grey.shape[1], int(x_px + reach) + 2), min(grey.shape[0], int(y_px + reach) + 2)
    if min(right - left, bottom - top) < 2 * _RING * diameter_px:
        return []
    window = grey[top:bottom, left:right] if look == "bright" else 255 - grey[top:bottom, left:right]
    scale = min(1.0, _SEARCH_PX / diameter_px)
    small = window if scale == 1.0 else cv2.resize(window, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    drawn = _drawn(diameter_px * scale)
    if min(small.shape) < drawn.shape[0]:
        return []
    fit: _Real = np.asarray(cv2.matchTemplate(small.astype(np.float32), drawn, cv2.TM_CCOEFF_NORMED), np.float32)
    fit[~np.isfinite(fit)] = 0.0  # where the picture has a single grey
    half = drawn.shape[0] // 2
    listed = []
    for peak in _peaks(fit, diameter_px * scale):
        x, y = ((at + half + 0.5) / scale - 0.5 for at in (peak.x, peak.y))
        disc = _refined(window, x, y, diameter_px, peak.score)
        if disc is not None:
            listed.append(replace(disc, x_px=disc.x_px + left, y_px=disc.y_px + top))
    return listed


def mean_in(grey: Grey, x_px: float, y_px: float, diameter_px: float) -> float | None:
    """Return the mean grey level in a disc; None if the disc lies partly outside of the picture."""
    radius = diameter_px / 2
    left, right = int(np.ceil(x_px - radius)), int(np.floor(x_px + radius))
    top, bottom = int(np.ceil(y_px - radius)), int(np.floor(y_px + radius))
    if left < 0 or top < 0 or right >= grey.shape[1] or bottom >= grey.shape[0] or right < left or bottom < top:
        return None
    rows, columns = np.mgrid[top : bottom + 1, left : right + 1]
    inside = np.hypot(columns - x_px, rows - y_px) <= radius
    return float(grey[top : bottom + 1, left : right + 1][inside].mean()) if inside.any() else None


def _drawn(diameter: float) -> _Real:
    """Return a white disc on black, with soft edges, in a square with an odd side."""
    half = round(_RING * diameter)
    places = np.arange(-half, half + 1, dtype=np.float32)
    apart = np.hypot(places[None, :], places[:, None])
    return np.clip(diameter / 2 - apart + 0.5, 0, 1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Peak:
    x: int
    y: int
    score: float


def _peaks(fit: _Real, diameter: float) -> Sequence[_Peak]:
    """Return the best places of a correlation that lie at least half a diameter apart."""
    apart, left = max(1, round(diameter / 2)), fit.copy()
    peaks: list[_Peak] = []
    while len(peaks) < MOST_DISCS:
        _, score, _, (x, y) = cv2.minMaxLoc(left)
        if score < LEAST_SCORE:
            break
        peaks.append(_Peak(int(x), int(y), float(score)))
        left[max(0, y - apart) : y + apart + 1, max(0, x - apart) : x + apart + 1] = 0
    return peaks


def _refined(window: Grey, x: float, y: float, diameter: float, score: float) -> Disc | None:
    """Return a disc with its exact middle; None if what lies there is no disc of about that diameter."""
    measured = contrast = 0.0
    for _ in range(_STEPS):
        reach = int(np.ceil(_RING * diameter)) + 1
        left, top = max(0, round(x) - reach), max(0, round(y) - reach)
        patch = window[top : round(y) + reach + 1, left : round(x) + reach + 1].astype(np.float32)
        rows, columns = np.mgrid[top : top + patch.shape[0], left : left + patch.shape[1]].astype(np.float32)
        apart = np.hypot(columns - x, rows - y)
        inner, ring = patch[apart <= 0.3 * diameter], patch[(apart >= 0.62 * diameter) & (apart <= _RING * diameter)]
        if not inner.size or not ring.size:
            return None
        light, ground = float(np.median(inner)), float(np.median(ring))
        contrast = light - ground
        if contrast < _FAINT:
            return None
        weight = np.where(apart <= 0.62 * diameter, np.clip((patch - ground) / contrast, 0, 1), 0)
        weight = np.where(weight < 0.1, 0, weight)  # the grain of the ground has no say
        total = float(weight.sum())
        x, y = float((weight * columns).sum()) / total, float((weight * rows).sum()) / total
        measured = 2 * float(np.sqrt(total / np.pi))
    least, most = (share * diameter for share in _DIAMETER)
    return Disc(x, y, measured, score, contrast) if least <= measured <= most else None
