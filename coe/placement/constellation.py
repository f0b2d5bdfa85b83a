"""Poses of a board by its marks alone: discs in the whole picture that lie to each other as the marks do.

It needs three marks, and finds boards whose parts are drawn otherwise than their packages say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import dist

import cv2
import numpy as np

from coe.placement.draft_recipe import Mark
from coe.placement.fiducials import LEAST_CONTRAST, Disc, Grey, discs
from coe.placement.fit import Numbers, similarity
from coe.placement.pose_search import BoardDrawing, Pose

_SIDE_PX = 1000
"""The longer side of the picture in which discs are searched."""
_SCALE_STEP = 1.18
_MOST_SHARE, _LEAST_SHARE = 1.1, 0.35
_OFF = 0.03
"""How far a mark may lie from its place, as a share of the board's longer side: a camera looks a little aslant."""
_KEPT = 6


def constellations(grey: Grey, drawing: BoardDrawing, marks: Sequence[Mark]) -> list[Pose]:
    """Return the poses at which most marks are seen in a picture (H, W) uint8, the best first."""
    shrink = min(1.0, _SIDE_PX / max(grey.shape))
    small = np.asarray(cv2.resize(grey, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA), np.uint8)
    most = _MOST_SHARE * max(small.shape) / max(drawing.size)
    found: list[Pose] = []
    for alike in {(mark.look, mark.diameter_mm) for mark in marks}:
        group = [mark for mark in marks if (mark.look, mark.diameter_mm) == alike]
        scale = most
        while len(group) > 2 and scale > _LEAST_SHARE * most:
            found += _poses(small, drawing, group, scale)
            scale /= _SCALE_STEP
    best = sorted(found, key=lambda pose: -pose.score)[:_KEPT]
    return [
        Pose(p.scale / shrink, p.turn_deg, (p.x_px + 0.5) / shrink - 0.5, (p.y_px + 0.5) / shrink - 0.5, p.score)
        for p in best
    ]


def _poses(grey: Grey, drawing: BoardDrawing, marks: Sequence[Mark], scale: float) -> Iterator[Pose]:
    """Yield the best pose of each turn at about a scale."""
    diameter = marks[0].diameter_mm * scale
    if diameter < 6:
        return
    height, width = grey.shape
    near = discs(grey, width / 2, height / 2, max(width, height) / 2, diameter, marks[0].look)
    near = [disc for disc in near if disc.contrast >= LEAST_CONTRAST]
    points = np.array([(mark.x_mm, mark.y_mm) for mark in marks])
    apart = sorted(combinations(range(len(marks)), 2), key=lambda pair: -dist(points[pair[0]], points[pair[1]]))[:3]
    best: dict[int, Pose] = {}
    for (one, other), (disc, second) in product(apart, product(near, near)):
        stretch = dist((disc.x_px, disc.y_px), (second.x_px, second.y_px)) / dist(points[one], points[other]) / scale
        if not 1 / _SCALE_STEP < stretch < _SCALE_STEP:
            continue
        fit = similarity(points[[one, other]], np.array([(disc.x_px, disc.y_px), (second.x_px, second.y_px)]))
        score = _seen(near, fit.pixels(points), _OFF * max(drawing.size) * scale)
        if score < 3:
            continue
        ((x, y),) = fit.pixels(drawing.middle[None])
        pose = Pose(1000 / fit.um_per_pixel, fit.turn_deg, float(x), float(y), score)
        turn = round(fit.turn_deg / 45)
        if turn not in best or score > best[turn].score:
            best[turn] = pose
    yield from best.values()


def _seen(near: Sequence[Disc], places: Numbers, reach_px: float) -> float:
    """Return how many marks have a disc at their place; a near and clear one counts a little more."""
    score = 0.0
    for at in places:
        nearest = min(near, key=lambda disc: dist((disc.x_px, disc.y_px), at))
        away = dist((nearest.x_px, nearest.y_px), at) / reach_px
        score += 1 + 0.3 * (nearest.score - away) if away <= 1 else 0.0
    return score
