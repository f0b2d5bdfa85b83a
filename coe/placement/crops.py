"""Crops of a board: each component upright, in its own picture. Law: a crop shows the whole package, or is refused.

Each crop is one warp of the picture. Nothing larger than the part of the picture that it shows is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.placement.fit import Fit, Numbers
from coe.placement.layout import CropShape, Site

Pixels = NDArray[np.uint8]

_COARSE = 1.5
"""A crop whose pixels are so many times as large as the picture's is cut at the picture's scale, then made smaller."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The corners of a crop in the picture, (4, 2) in pixels: the upright crop's top left, top right, and so on round.

    `outside_px` is how far the farthest corner lies outside of the picture; 0 if the whole crop lies in it.
    """

    corners: Numbers
    outside_px: float


def outline(site: Site, fit: Fit, width_px: int, height_px: int) -> Outline:
    """Return where the crop of a component lies in a picture of that size."""
    half = np.array([site.crop.width_mm, site.crop.height_mm]) / 2
    corners = fit.pixels(_on_board(site, half * np.array([(-1, 1), (1, 1), (1, -1), (-1, -1)])))
    # Half a pixel around the middles of the outermost pixels still belongs to the picture.
    outside = np.maximum(-0.5 - corners, corners - (np.array([width_px, height_px]) - 0.5)).max()
    return Outline(corners, max(0.0, float(outside)))


def crop(pixels: Pixels, site: Site, fit: Fit) -> Pixels | None:
    """Return the crop of a component, (height, width, 3) uint8 as its shape says; None if it is partly outside.

    The corner of the package that is its top left at an angle of 0 becomes the top left of the crop.
    """
    height, width = pixels.shape[:2]
    if outline(site, fit, width, height).outside_px > 0:
        return None
    shape = site.crop
    wanted = (shape.width_px, shape.height_px)
    # Pixels of the picture for a pixel of the crop. Where a crop is much smaller, a warp alone would leave pixels out.
    coarser = shape.width_mm * 1000 / fit.um_per_pixel / shape.width_px
    at_scale = wanted if coarser < _COARSE else (round(wanted[0] * coarser), round(wanted[1] * coarser))
    upright = cv2.warpAffine(
        pixels,
        _from_crop(site, fit, *at_scale),
        at_scale,
        flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return np.asarray(upright if at_scale == wanted else cv2.resize(upright, wanted, interpolation=cv2.INTER_AREA))


def pin1(outline: Outline, shape: CropShape) -> Numbers:
    """Return the corner (2,) of the first pin in the picture, in pixels."""
    names = ("top-left", "top-right", "bottom-right", "bottom-left")
    corner: Numbers = outline.corners[names.index(shape.pin1)]
    return corner


def _on_board(site: Site, points: Numbers) -> Numbers:
    """Return points (n, 2) of a package, mm from its middle, as points of the board."""
    turn = radians(site.angle_deg)
    matrix = np.array([[cos(turn), -sin(turn)], [sin(turn), cos(turn)]])
    placed: Numbers = points @ matrix.T + np.array([site.at.x_mm, site.at.y_mm])
    return placed


def _from_crop(site: Site, fit: Fit, width_px: int, height_px: int) -> Numbers:
    """Return the map (2, 3) from a pixel of the crop to the picture, by what it does to three pixels."""
    pixels = np.array([(0, 0), (1, 0), (0, 1)], np.float64)
    shares = (pixels + 0.5) / np.array([width_px, height_px]) - 0.5
    sizes = np.array([site.crop.width_mm, -site.crop.height_mm])
    origin, right, down = fit.pixels(_on_board(site, shares * sizes))
    return np.column_stack([right - origin, down - origin, origin])
