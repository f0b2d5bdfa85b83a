"""Fits from a board to a picture: points in mm, x to the right and y up, to pixels, x to the right and y down.

Least squares: a rigid motion and a similarity as Umeyama (1991) gives them in the plane, an affine map by linear
equations. Nothing here looks at a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atan2, degrees, hypot

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A map (2, 3) from a point (x, y, 1) of a board in mm to a picture in pixels."""

    matrix: Numbers

    def pixels(self, points: Numbers) -> Numbers:
        """Return points (n, 2) of the board as points (n, 2) of the picture."""
        mapped: Numbers = points @ self.matrix[:, :2].T + self.matrix[:, 2]
        return mapped

    @property
    def um_per_pixel(self) -> float:
        """The length of a pixel on the board, the mean over both directions."""
        return float(1000 / np.sqrt(abs(np.linalg.det(self.matrix[:, :2]))))

    @property
    def turn_deg(self) -> float:
        """How far the board is turned in the picture, counterclockwise."""
        (a, b), (c, d) = self.matrix[:, :2]
        return degrees(atan2(-c - b, a - d))

    def residual_um(self, points: Numbers, pixels: Numbers) -> float:
        """Return the greatest distance in micrometres between where points lie in the picture and where they should."""
        apart = self.pixels(points) - pixels
        return max(hypot(*pair) for pair in apart) * self.um_per_pixel


def similarity(points: Numbers, pixels: Numbers, um_per_pixel: float | None = None) -> Fit:
    """Return the turn, scale and shift that bring points (n, 2) in mm nearest to pixels (n, 2), n at least 2.

    With `um_per_pixel` the scale is given, and the motion is rigid.
    """
    # As complex numbers a turn with a scale is one factor; the picture's y goes down.
    source = points[:, 0] - 1j * points[:, 1]
    target = pixels[:, 0] + 1j * pixels[:, 1]
    middle, there = source.mean(), target.mean()
    factor = np.vdot(source - middle, target - there) / np.vdot(source - middle, source - middle).real
    if um_per_pixel is not None:
        factor *= 1000 / um_per_pixel / abs(factor) if abs(factor) else 0.0
    shift = there - factor * middle
    a, b = factor.real, factor.imag
    return Fit(np.array([[a, b, shift.real], [b, -a, shift.imag]]))


def affine(points: Numbers, pixels: Numbers) -> Fit:
    """Return the affine map that brings points (n, 2) in mm nearest to pixels (n, 2): 3 or more, not in a line."""
    solved = np.linalg.lstsq(np.column_stack([points, np.ones(len(points))]), pixels, rcond=None)[0]
    return Fit(np.ascontiguousarray(solved.T))


def fitted(points: Numbers, pixels: Numbers) -> Fit:
    """Return the map that crops are cut by: a similarity of two points, an affine map of three and more."""
    return similarity(points, pixels) if len(points) == 2 else affine(points, pixels)


def residual_um(points: Numbers, pixels: Numbers, um_per_pixel: float) -> float:
    """Return in micrometres by how much points contradict each other.

    A fit through as many points as it needs goes through all of them, whatever they are. So the residual is that of the
    richest fit which the points over-determine: two points are held against the scale of the recipe, three against a
    similarity, more against an affine map.
    """
    if len(points) == 2:
        return similarity(points, pixels, um_per_pixel).residual_um(points, pixels)
    return (similarity if len(points) == 3 else affine)(points, pixels).residual_um(points, pixels)
