"""Fits from a board to a picture: points in mm, x to the right and y up, to pixels, x to the right and y down.

Least squares: a rigid motion and a similarity as Umeyama (1991) gives them in the plane, an affine map by linear
equations. A camera that looks aslant adds a projective map. Nothing here looks at a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, cos, degrees, dist, hypot, radians, sin

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A map from a point (x, y, 1) of a board in mm to a picture in pixels: affine (2, 3), or projective (3, 3).

    Scale and turn of a projective map are those at the point `about` of the board, in mm.
    """

    matrix: Numbers
    about: tuple[float, float] = (0.0, 0.0)

    def pixels(self, points: Numbers) -> Numbers:
        """Return points (n, 2) of the board as points (n, 2) of the picture."""
        mapped: Numbers = points @ self.matrix[:, :2].T + self.matrix[:, 2]
        return mapped if len(self.matrix) == 2 else mapped[:, :2] / mapped[:, 2:]

    @property
    def linear(self) -> Numbers:
        """The map (2, 2) of small steps of the board, in mm, to steps in pixels."""
        if len(self.matrix) == 2:
            return self.matrix[:, :2]
        about = np.array([self.about])
        down = float((about @ self.matrix[2:, :2].T)[0, 0] + self.matrix[2, 2])
        step: Numbers = (self.matrix[:2, :2] - self.pixels(about).T @ self.matrix[2:, :2]) / down
        return step

    @property
    def um_per_pixel(self) -> float:
        """The length of a pixel on the board, the mean over both directions."""
        return float(1000 / np.sqrt(abs(np.linalg.det(self.linear))))

    @property
    def turn_deg(self) -> float:
        """How far the board is turned in the picture, counterclockwise."""
        (a, b), (c, d) = self.linear
        return degrees(atan2(-c - b, a - d))

    def behind(self, view: Numbers, about: tuple[float, float]) -> Fit:
        """Return this affine map seen by a `view`, a projective map (3, 3) of its pixels to those of a picture."""
        matrix = view @ np.vstack([self.matrix, [0.0, 0.0, 1.0]])
        if np.allclose(matrix[2], [0.0, 0.0, matrix[2, 2]], atol=1e-12):
            return Fit(np.ascontiguousarray(matrix[:2] / matrix[2, 2]), about)
        return Fit(matrix, about)

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


def are_in_line(points: Sequence[Sequence[float]]) -> bool:
    """Tell whether the triangle of three points is less than a tenth as high as it is long."""
    a, b, c = points
    double_area = abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]))
    return double_area < 0.1 * max(dist(a, b), dist(b, c), dist(a, c)) ** 2


def affine(points: Numbers, pixels: Numbers) -> Fit:
    """Return the affine map that brings points (n, 2) in mm nearest to pixels (n, 2): 3 or more, not in a line."""
    solved = np.linalg.lstsq(np.column_stack([points, np.ones(len(points))]), pixels, rcond=None)[0]
    return Fit(np.ascontiguousarray(solved.T))


def view_of(turn_deg: float, middle_px: tuple[float, float], keystone: tuple[float, float], half_px: float) -> Numbers:
    """Return how a camera sees a levelled board, as a projective map (3, 3) of pixels.

    A levelled board lies unturned, with its middle at (0, 0). The camera sees it turned counterclockwise, its middle at
    `middle_px`, and `half_px` to the right (below) of it smaller by `keystone` as a share, so much to the left larger.
    """
    across, along = cos(radians(turn_deg)), sin(radians(turn_deg))
    turned = np.array([[across, along, 0.0], [-along, across, 0.0], [0.0, 0.0, 1.0]])
    slant = np.eye(3)
    slant[2, :2] = np.array(keystone) / half_px
    moved = np.array([[1.0, 0.0, middle_px[0]], [0.0, 1.0, middle_px[1]], [0.0, 0.0, 1.0]])
    view: Numbers = moved @ slant @ turned
    return view


def through(view: Numbers, pixels: Numbers) -> Numbers:
    """Return points (n, 2) as a projective map (3, 3) takes them."""
    return Fit(view).pixels(pixels)


def projective(points: Numbers, pixels: Numbers, about: tuple[float, float]) -> Fit:
    """Return the projective map that brings points (n, 2) in mm nearest to pixels (n, 2): 4 or more, as a rectangle's.

    By singular values of the linear equations, in coordinates of unit size (Hartley, 1997).
    """
    (source, from_mm), (target, from_px) = _of_unit_size(points), _of_unit_size(pixels)
    rows = []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[-x, -y, -1, 0, 0, 0, u * x, u * y, u], [0, 0, 0, -x, -y, -1, v * x, v * y, v]]
    matrix = np.linalg.inv(from_px) @ np.linalg.svd(np.array(rows))[2][-1].reshape(3, 3) @ from_mm
    return Fit(matrix / matrix[2, 2], about)


def _of_unit_size(points: Numbers) -> tuple[Numbers, Numbers]:
    middle = points.mean(axis=0)
    size = float(np.hypot(*(points - middle).T).mean())
    norm = np.array([[1 / size, 0, -middle[0] / size], [0, 1 / size, -middle[1] / size], [0, 0, 1.0]])
    return (points - middle) / size, norm


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
