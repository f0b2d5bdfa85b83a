"""Crops of a board: each component upright, in its own picture. A crop shows the whole package, or is refused.

Each crop is one warp of the picture. Nothing larger than the part of the picture that it shows is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from coe.pictures.array_images import DecodedImage
from coe.placement.board_layout import CropShape, Site
from coe.placement.fit import Fit, Numbers

_COARSE = 1.5
"""A crop whose pixels are so many times as large as the picture's is cut at the picture's scale, then made smaller."""
_ASLANT_PX = 0.25
"""A crop whose corners lie as far from a parallelogram is cut by a projective map."""
OUTSIDE = (18, 22, 27)
"""The colour, RGB, of what lies outside of a picture, where a crop is shown with what lies around it."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The corners of a crop in the picture, (4, 2) in pixels: the upright crop's top left, top right, and so on round.

    `outside_px` is how far the farthest corner lies outside of the picture; 0 if the whole crop lies in it.
    """

    corners: Numbers
    outside_px: float


def outline(site: Site, fit: Fit, width_px: int, height_px: int) -> Outline:
    """Return where the crop of a component lies in a picture of that size."""
    corners = fit.pixels(np.array([(corner.x_mm, corner.y_mm) for corner in site.corners]))
    # Half a pixel around the middles of the outermost pixels still belongs to the picture.
    outside = np.maximum(-0.5 - corners, corners - (np.array([width_px, height_px]) - 0.5)).max()
    return Outline(corners, max(0.0, float(outside)))


def crop(pixels: DecodedImage, site: Site, fit: Fit) -> DecodedImage | None:
    """Return the crop of a component, (height, width, 3) uint8 as its shape says; None if it is partly outside.

    The corner of the package that is its top left at an angle of 0 becomes the top left of the crop.
    """
    height, width = pixels.shape[:2]
    where = outline(site, fit, width, height)
    if where.outside_px > 0:
        return None
    return upright(pixels, where.corners, site.crop.width_px, site.crop.height_px)


def upright(pixels: DecodedImage, corners: Numbers, width_px: int, height_px: int, around_px: int = 0) -> DecodedImage:
    """Return what lies between the `corners` of an `Outline`, (height_px, width_px, 3) uint8.

    With `around_px`, in pixels of the crop, each side shows so much more; what lies outside of the picture is dark.
    """
    right, down = (corners[1] - corners[0]) / width_px, (corners[3] - corners[0]) / height_px
    begin = corners[0] - around_px * (right + down)
    wanted = (width_px + 2 * around_px, height_px + 2 * around_px)
    # Pixels of the picture for a pixel of the crop. Where a crop is much smaller, a warp alone would leave pixels out.
    coarser = float(np.hypot(*right))
    at_scale = wanted if coarser < _COARSE else (round(wanted[0] * coarser), round(wanted[1] * coarser))
    right, down = right * wanted[0] / at_scale[0], down * wanted[1] / at_scale[1]
    warp: Numbers = np.column_stack([right, down, begin + (right + down) / 2])
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    mode = cv2.BORDER_CONSTANT if around_px else cv2.BORDER_REPLICATE
    aslant = float(np.hypot(*(corners[0] + corners[2] - corners[1] - corners[3])))
    if aslant < _ASLANT_PX:
        cut = cv2.warpAffine(pixels, warp, at_scale, flags=flags, borderMode=mode, borderValue=OUTSIDE)
    else:
        share = np.array([at_scale[0] / wanted[0], at_scale[1] / wanted[1]])
        ends = [np.array(end) * (width_px, height_px) + around_px for end in ((0, 0), (1, 0), (1, 1), (0, 1))]
        square = np.array(ends) * share - 0.5
        warp = np.asarray(
            cv2.getPerspectiveTransform(square.astype(np.float32), corners.astype(np.float32)), np.float64
        )
        cut = cv2.warpPerspective(pixels, warp, at_scale, flags=flags, borderMode=mode, borderValue=OUTSIDE)
    return np.asarray(cut if at_scale == wanted else cv2.resize(cut, wanted, interpolation=cv2.INTER_AREA))


def pin1(outline: Outline, shape: CropShape) -> Numbers:
    """Return the corner (2,) of pin 1 in the picture, in pixels."""
    names = ("top-left", "top-right", "bottom-right", "bottom-left")
    corner: Numbers = outline.corners[names.index(shape.pin1)]
    return corner
