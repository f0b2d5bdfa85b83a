"""The marks of a board in a picture, from a rough pose: which discs they are, and the map that goes through them.

Discs near each mark are listed; two of them say where the others must be. With three marks the map is affine, with
four and more projective, as a camera sees that looks aslant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import dist

import numpy as np

from coe.placement.draft_recipe import Mark
from coe.placement.fiducials import LEAST_CONTRAST, Disc, Grey, discs
from coe.placement.fit import Fit, Numbers, affine, projective, similarity
from coe.placement.pose_search import Pose
from coe.placement.recipe_spec import Look

_REACH_MM = 2.5
"""How far from where a pose has it a mark is searched."""
_MOST_EACH = 8
_ROUGH_MM, _CLOSE_MM = 1.2, 0.3
_DIAMETERS = (1.0, 0.8, 1.5, 2.0, 0.6, 1.25)
"""By how much a mark may be larger or smaller than its package says."""
_MOST_STRETCH, _MOST_TURN = 0.05, 4.0


@dataclass(frozen=True, slots=True)
class MarkMatch:
    """Marks that were found in a picture, as they look there, with their discs, and the map from mm to pixels."""

    marks: tuple[Mark, ...]
    discs: tuple[Disc, ...]
    fit: Fit


def matched(grey: Grey, marks: Sequence[Mark], pose: Pose, rough: Fit) -> MarkMatch | None:
    """Return the marks that are found near a pose of a board in a picture (H, W) uint8; None if fewer than two are.

    How large marks are and whether they are bright is measured: packages tell it roughly. `rough` is the map of the
    pose.
    """
    listed: dict[int, tuple[Mark, list[Disc]]] = {}
    for looks_alike in _groups(marks):
        at = rough.pixels(np.array([(marks[index].x_mm, marks[index].y_mm) for index in looks_alike]))
        best: tuple[float, list[tuple[Mark, list[Disc]]]] = (0.0, [])
        for share, look in product(_DIAMETERS, _looks(marks[looks_alike[0]])):
            diameter = marks[looks_alike[0]].diameter_mm * share
            near = [_near(grey, float(x), float(y), diameter, look, pose.scale) for x, y in at]
            worth = sum(found[0].score * min(1.0, found[0].contrast / 40) for found in near if found) - 0.1 * abs(
                share - 1
            )
            if worth > best[0]:
                seen = [
                    (Mark(mark.name, mark.x_mm, mark.y_mm, round(diameter, 2), look), found)
                    for mark, found in zip((marks[index] for index in looks_alike), near, strict=True)
                ]
                best = (worth, seen)
        listed.update({index: one for index, one in zip(looks_alike, best[1], strict=False) if one[1]})
    return _consistent(list(listed.values()), pose)


def _groups(marks: Sequence[Mark]) -> list[list[int]]:
    groups: dict[tuple[Look, float], list[int]] = {}
    for index, mark in enumerate(marks):
        groups.setdefault((mark.look, mark.diameter_mm), []).append(index)
    return list(groups.values())


def _looks(mark: Mark) -> tuple[Look, ...]:
    return ("bright", "dark") if mark.look == "bright" else ("dark", "bright")


def _near(grey: Grey, x: float, y: float, diameter_mm: float, look: Look, scale: float) -> list[Disc]:
    if diameter_mm * scale < 6:
        return []
    found = discs(grey, x, y, _REACH_MM * scale, diameter_mm * scale, look)
    return [disc for disc in found if disc.contrast >= LEAST_CONTRAST][:_MOST_EACH]


def _consistent(listed: Sequence[tuple[Mark, list[Disc]]], pose: Pose) -> MarkMatch | None:
    """Return the discs of most marks that lie to each other as the marks do."""
    best: tuple[float, MarkMatch] | None = None
    points = np.array([(mark.x_mm, mark.y_mm) for mark, _ in listed])
    for one, other in combinations(range(len(listed)), 2):
        for pair in product(listed[one][1], listed[other][1]):
            pixels = np.array([(disc.x_px, disc.y_px) for disc in pair])
            if dist(*pixels) < 1:
                continue
            start = similarity(points[[one, other]], pixels)
            turned = (start.turn_deg - pose.turn_deg + 180) % 360 - 180
            if abs(1000 / start.um_per_pixel / pose.scale - 1) > _MOST_STRETCH or abs(turned) > _MOST_TURN:
                continue
            match = _grown(listed, points, start, pose)
            if match is None:
                continue
            residual = _residual_mm(match, pose)
            score = len(match.marks) + sum(disc.score for disc in match.discs) / 100 - residual
            if best is None or score > best[0]:
                best = (score, match)
    return None if best is None else best[1]


def _grown(listed: Sequence[tuple[Mark, list[Disc]]], points: Numbers, fit: Fit, pose: Pose) -> MarkMatch | None:
    """Take the nearest disc of each mark, as far as a first map is right, then of the map through these."""
    for reach in (_ROUGH_MM, _CLOSE_MM):
        chosen = []
        for index, ((_, found), at) in enumerate(zip(listed, fit.pixels(points), strict=True)):
            nearest = min(found, key=lambda disc: dist((disc.x_px, disc.y_px), at))
            if dist((nearest.x_px, nearest.y_px), at) <= reach * pose.scale:
                chosen.append((index, nearest))
        if len(chosen) < 2:
            return None
        indices = [index for index, _ in chosen]
        pixels = np.array([(disc.x_px, disc.y_px) for _, disc in chosen])
        fit = _through(points[indices], pixels)
    return MarkMatch(tuple(listed[index][0] for index in indices), tuple(disc for _, disc in chosen), fit)


def _through(points: Numbers, pixels: Numbers) -> Fit:
    """Return the richest map that the points tell: of marks nearly in a line no more than a similarity."""
    about = (float(points[:, 0].mean()), float(points[:, 1].mean()))
    spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    if len(points) == 2 or spread[-1] < 0.1 * spread[0]:
        return similarity(points, pixels)
    if len(points) > 3 and not _has_three_in_line(points):
        return projective(points, pixels, about)
    return affine(points, pixels)


def _has_three_in_line(points: Numbers) -> bool:
    """Tell whether four points are too near a line to tell a projective map: of each three, two sides are long."""
    if len(points) > 4:
        return False
    for a, b, c in combinations(points, 3):
        double = abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]))
        if double < 0.1 * max(dist(a, b), dist(b, c), dist(a, c)) ** 2:
            return True
    return False


def _residual_mm(match: MarkMatch, pose: Pose) -> float:
    points = np.array([(mark.x_mm, mark.y_mm) for mark in match.marks])
    pixels = np.array([(disc.x_px, disc.y_px) for disc in match.discs])
    return float(np.hypot(*(match.fit.pixels(points) - pixels).T).max() / pose.scale)
