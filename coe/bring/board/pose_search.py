"""Where a board lies in a picture of which nothing is known: any scale, any turn, off the middle.

The edges of all parts are drawn as they should lie, and compared with the edges of the picture by normalised
correlation (Lewis, 1995), coarse to fine over scale and turn. Each of the best few poses is handed on: marks decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import cos, radians, sin

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.pictures.array_images import DecodedImage
from coe.placement.fit import Fit, Numbers

_Real = NDArray[np.float32]

_COARSE_PX, FINE_PX = 176, 440
"""The longer side of the picture while poses are searched, and while they are made finer."""
_LEAST_SHARE = 0.35
"""The least share of the picture that a board takes up, as a length."""
_MOST_SHARE = 1.1
_SCALE_STEP, _TURN_STEP, _MOST_ASKEW = 0.03, 3.0, 6.0
_KEPT = 10
"""So many poses are made finer."""


@dataclass(frozen=True, slots=True)
class BoardDrawing:
    """What the camera should see of a board, in mm: the corners (4, 2) of each part, discs as (x, y, diameter), and the
    outline as left, bottom, right and top."""

    parts: tuple[Numbers, ...]
    discs: tuple[tuple[float, float, float], ...]
    outline: tuple[float, float, float, float]
    outline_is_known: bool

    @property
    def middle(self) -> Numbers:
        """The middle of the outline."""
        left, bottom, right, top = self.outline
        return np.array([(left + right) / 2, (bottom + top) / 2])

    @property
    def size(self) -> Numbers:
        """Width and height of the outline."""
        left, bottom, right, top = self.outline
        return np.array([right - left, top - bottom])

    @property
    def turned_over(self) -> BoardDrawing:
        """The same board with its x mirrored about its middle."""
        turn, about = np.array([-1.0, 1.0]), np.array([2 * self.middle[0], 0.0])
        discs = tuple((about[0] - x, y, diameter) for x, y, diameter in self.discs)
        return replace(self, parts=tuple(corners * turn + about for corners in self.parts), discs=discs)


@dataclass(frozen=True, slots=True)
class Pose:
    """A place of a board in a picture: pixels per mm, turn counterclockwise, its middle in pixels, how well it fits.

    `score` is a correlation, from -1 to 1.
    """

    scale: float
    turn_deg: float
    x_px: float
    y_px: float
    score: float

    def fit(self, drawing: BoardDrawing) -> Fit:
        """Return the map from the board to the picture."""
        turn, (x, y) = radians(self.turn_deg), drawing.middle
        a, b = self.scale * cos(turn), self.scale * sin(turn)
        return Fit(np.array([[a, -b, self.x_px - a * x + b * y], [-b, -a, self.y_px + b * x + a * y]]), (x, y))


def poses(pixels: DecodedImage, drawing: BoardDrawing) -> list[Pose]:
    """Return the likeliest poses of a board in a picture (H, W, 3) uint8 RGB, the best first."""
    coarse, fine = edges_of(pixels, _COARSE_PX), edges_of(pixels, FINE_PX)
    found = [
        _best_place(coarse, drawing, scale, quarter + askew)
        for quarter in (0.0, 90.0, 180.0, 270.0)
        for askew in np.arange(-_MOST_ASKEW, _MOST_ASKEW + 0.1, _TURN_STEP)
        for scale in _scales(coarse.picture.shape, drawing, quarter)
    ]
    kept: list[Pose] = []
    for pose in sorted(found, key=lambda one: -one.score):
        if len(kept) < _KEPT and all(_is_other(pose, other) for other in kept):
            kept.append(pose)
    finer = [_finer(fine, drawing, pose) for pose in kept]
    return sorted(finer, key=lambda pose: -pose.score)


def agreement(edges: PictureEdges, drawing: BoardDrawing, fit: Fit) -> float:
    """Return how well the edges of a picture agree with a board that lies as a map says, from -1 to 1."""
    whole = fit.matrix if len(fit.matrix) == 3 else np.vstack([fit.matrix, [0.0, 0.0, 1.0]])
    small: Numbers = np.diag([edges.scale, edges.scale, 1.0]) @ whole
    drawn = _drawn(drawing, Fit(small), edges.picture.shape)
    corners = Fit(small).pixels(_rectangle(drawing.outline))
    inside = np.zeros(edges.picture.shape, np.uint8)
    cv2.fillPoly(inside, [np.round(corners).astype(np.int32)], 1)
    here = inside > 0
    if here.sum() < 100 or not np.ptp(edges.picture[here]) or not np.ptp(drawn[here]):
        return -1.0  # a picture of one grey has no edges
    return float(np.corrcoef(edges.picture[here], drawn[here])[0, 1])


@dataclass(frozen=True, slots=True)
class PictureEdges:
    """The edges of a picture made smaller by `scale`."""

    picture: _Real
    scale: float


def edges_of(pixels: DecodedImage, side_px: int) -> PictureEdges:
    """Return the edges of a picture (H, W, 3) uint8 RGB whose longer side becomes `side_px` pixels."""
    scale = side_px / max(pixels.shape[:2])
    # Twice as large first: edges of small parts would be lost in the mean.
    double = cv2.resize(pixels, None, fx=2 * scale, fy=2 * scale, interpolation=cv2.INTER_AREA).astype(np.float32)
    sobel = [np.abs(cv2.Sobel(double, cv2.CV_32F, dx, dy)) for dx, dy in ((1, 0), (0, 1))]
    slopes = [reduce(np.maximum, cv2.split(one)) for one in sobel]  # a seventh of the time of numpy's max along an axis
    steep = np.hypot(*slopes)
    steep = np.sqrt(np.clip(steep / max(1.0, float(np.percentile(steep, 97))), 0, 1))
    size = round(pixels.shape[1] * scale), round(pixels.shape[0] * scale)
    smooth = cv2.GaussianBlur(steep, (0, 0), 1.6)
    return PictureEdges(np.asarray(cv2.resize(smooth, size, interpolation=cv2.INTER_AREA), np.float32), scale)


def _scales(shape: tuple[int, ...], drawing: BoardDrawing, turn_deg: float) -> Numbers:
    """Return the scales at which a board may lie in a picture, in pixels per mm."""
    size = drawing.size if turn_deg % 180 == 0 else drawing.size[::-1]
    most = _MOST_SHARE * min(shape[1] / size[0], shape[0] / size[1])
    least = _LEAST_SHARE * min(shape[1] / size[0], shape[0] / size[1])
    steps = int(np.ceil(np.log(most / least) / np.log(1 + _SCALE_STEP)))
    scales: Numbers = np.geomspace(least, most, steps)
    return scales


def _best_place(edges: PictureEdges, drawing: BoardDrawing, scale: float, turn_deg: float) -> Pose:
    """Return the best place in a picture at a scale of its smaller pixels, and a turn."""
    around = Pose(scale, turn_deg, 0.0, 0.0, 0.0).fit(drawing)
    corners = around.pixels(_rectangle(drawing.outline))
    reach = np.ceil(np.abs(corners).max(axis=0)).astype(int)
    template = _drawn(drawing, _moved(around, reach), (2 * reach[1] + 1, 2 * reach[0] + 1))
    height, width = edges.picture.shape
    # Where the board reaches out of the picture, there is nothing.
    pad_x, pad_y = (
        max(0, int(2 * far + 1 - side)) // 2 + round(0.06 * side)
        for far, side in zip(reach, (width, height), strict=True)
    )
    wide = cv2.copyMakeBorder(edges.picture, pad_y, pad_y, pad_x, pad_x, cv2.BORDER_CONSTANT, value=0.0)
    if wide.shape[0] < template.shape[0] or wide.shape[1] < template.shape[1]:
        return Pose(scale / edges.scale, turn_deg, 0.0, 0.0, -1.0)
    # Held against all edges of the picture: a small board that explains few of them is less likely than a large one.
    scores = cv2.matchTemplate(wide, template, cv2.TM_CCOEFF)
    _, score, _, (x, y) = cv2.minMaxLoc(scores)
    most = float(np.linalg.norm(template - template.mean()) * np.linalg.norm(edges.picture - edges.picture.mean()))
    score = score / most if most else -1.0
    place = np.array([x + reach[0] - pad_x, y + reach[1] - pad_y]) + 0.0
    at = (place + 0.5) / edges.scale - 0.5
    return Pose(scale / edges.scale, turn_deg, float(at[0]), float(at[1]), float(score))


def _finer(edges: PictureEdges, drawing: BoardDrawing, pose: Pose) -> Pose:
    """Return the best pose near one, at a finer scale of the picture."""
    best = replace(pose, score=-1.0)
    for stretch_step, turn_step in ((0.012, 1.2), (0.004, 0.4)):
        start = pose if best.score < 0 else best
        for stretch in (-1, 0, 1):
            for turn in (-1, 0, 1):
                scale = start.scale * edges.scale * (1 + stretch * stretch_step)
                tried = _best_place(edges, drawing, scale, start.turn_deg + turn * turn_step)
                best = max(best, tried, key=lambda one: one.score)
    return best


def _is_other(pose: Pose, other: Pose) -> bool:
    turned = abs((pose.turn_deg - other.turn_deg + 180) % 360 - 180)
    apart = np.hypot(pose.x_px - other.x_px, pose.y_px - other.y_px) * 0.02
    return turned > 20 or abs(pose.scale / other.scale - 1) > 0.07 or apart > pose.scale


def _moved(fit: Fit, by: Numbers) -> Fit:
    matrix = fit.matrix.copy()
    matrix[:, 2] += by
    return Fit(matrix, fit.about)


def _rectangle(outline: Sequence[float]) -> Numbers:
    left, bottom, right, top = outline
    return np.array([(left, bottom), (right, bottom), (right, top), (left, top)])


def _drawn(drawing: BoardDrawing, fit: Fit, shape: tuple[int, ...]) -> _Real:
    """Return the edges of a board as a picture of a shape should have them."""
    ground = np.zeros(shape[:2], np.uint8)
    turns = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    ring = np.column_stack([np.cos(turns), np.sin(turns)])
    edges = [*drawing.parts, *(ring * diameter / 2 + (x, y) for x, y, diameter in drawing.discs)]
    if edges:
        points = _fixed(fit.pixels(np.concatenate(edges)))
        polygons = np.split(points, np.cumsum([len(one) for one in edges[:-1]]))
        cv2.polylines(ground, polygons, True, 255, 1, cv2.LINE_AA, 4)
    if drawing.outline_is_known:
        cv2.polylines(ground, [_fixed(fit.pixels(_rectangle(drawing.outline)))], True, 160, 1, cv2.LINE_AA, 4)
    return np.asarray(cv2.GaussianBlur(ground.astype(np.float32) / 255, (0, 0), 1.0), np.float32)


def _fixed(points: Numbers) -> NDArray[np.int32]:
    return np.asarray(np.round(points * 16), np.int32)
