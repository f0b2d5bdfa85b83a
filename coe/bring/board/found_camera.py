"""How a camera sees a board, measured in pictures of it: the figures of a recipe that no file tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import atan2, degrees, dist

import cv2
import numpy as np

from coe.bring.board.pose_search import FINE_PX, BoardDrawing, PictureEdges, Pose, agreement, edges_of, poses
from coe.bring.parts.naming import Mark
from coe.errors import ConfigError
from coe.pictures.array_images import DecodedImage
from coe.placement.board_layout import Layout
from coe.placement.fiducials import LEAST_CONTRAST, Disc, Grey, discs
from coe.placement.fit import Fit, Numbers, affine, are_in_line, fitted, projective, similarity, through, view_of
from coe.placement.recipe_spec import CameraSpec, Look

# Poses of a board by its marks alone: discs in the whole picture that lie to each other as the marks do


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


# The marks of a board in a picture, from a rough pose: which discs they are, and the map that goes through them


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
    # Of four points, each three must tell an affine map.
    if len(points) > 4 or (len(points) == 4 and not any(map(are_in_line, combinations(points, 3)))):
        return projective(points, pixels, about)
    return affine(points, pixels)


def _residual_mm(match: MarkMatch, pose: Pose) -> float:
    points = np.array([(mark.x_mm, mark.y_mm) for mark in match.marks])
    pixels = np.array([(disc.x_px, disc.y_px) for disc in match.discs])
    return float(np.hypot(*(match.fit.pixels(points) - pixels).T).max() / pose.scale)


_TRIED = 4
"""So many poses of a picture are looked through for marks."""
_LEAST_AGREEMENT = 0.12
"""The least correlation of the edges of a picture with those of a board that lies there."""
_SURE_AGREEMENT = 0.3
"""With so much, marks alone tell how a board lies."""
_CLEARLY = 0.04
"""By how much the best turn agrees better than another one, for nobody to doubt it."""
_MOST_APART_DEG = 20.0
_LEAST_KEYSTONE = 0.001
_LEAST_ASIDE_MM2 = 1.0
"""Twice the area of three points that lie in no line."""
_PART_EDGE_MM = 0.05
_EXACT_PX = 900
"""The longer side of the picture while a keystone is measured by the edges of parts, for want of marks."""
_MOST_SLANT, _LEAST_GAIN = 0.03, 0.01
_MOST_KEYSTONE, _MOST_ASPECT = 0.1, 1.05


@dataclass(frozen=True, slots=True)
class FoundBoard:
    """A board in a picture: the marks found, the map from mm to pixels, and how well edges agree, -1 to 1.

    `doubt` is a sentence's end if the board could as well lie turned otherwise, or be another.
    """

    match: MarkMatch
    agreement: float
    size_px: tuple[int, int]
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class FoundCamera:
    """What pictures tell of a camera; `spread_mm` is by how much boards lie apart in them, `differ` the keystones."""

    um_per_pixel: float
    camera: CameraSpec
    spread_mm: float
    keystones_differ: bool


def drawing_of(layout: Layout, marks: Sequence[Mark], *, outline_is_known: bool) -> BoardDrawing:
    """Return what the camera should see of a layout; `marks` are in its frame."""
    parts = []
    for site in layout.sites:
        margin = layout.recipe.components[site.component].margin - _PART_EDGE_MM
        width, height = site.crop.width_mm - 2 * margin, site.crop.height_mm - 2 * margin
        bare = replace(site, crop=replace(site.crop, width_mm=width, height_mm=height))
        parts.append(np.array([(corner.x_mm, corner.y_mm) for corner in bare.corners]))
    discs = tuple((mark.x_mm, mark.y_mm, mark.diameter_mm) for mark in marks)
    outline = layout.low.x_mm, layout.low.y_mm, layout.high.x_mm, layout.high.y_mm
    return BoardDrawing(tuple(parts), discs, outline, outline_is_known)


def find_board(pixels: DecodedImage, drawing: BoardDrawing, marks: Sequence[Mark]) -> FoundBoard | None:
    """Return a board in a picture (H, W, 3) uint8 RGB, whatever its scale and its turn; None if it is not seen.

    Without marks the edges of the parts alone tell how it lies, and whether it is this board at all.
    """
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
    edges = edges_of(pixels, FINE_PX)
    by_marks = constellations(grey, drawing, marks) if marks else ()
    found = list(_matches(grey, drawing, marks, by_marks, edges))
    if not any(board.agreement >= _SURE_AGREEMENT for board in found):
        found += _matches(grey, drawing, marks, poses(pixels, drawing)[:_TRIED], edges)
    best = max(found, key=lambda board: board.agreement + 0.05 * len(board.match.marks), default=None)
    if best is None or best.agreement < _LEAST_AGREEMENT:
        return None
    if not marks:
        best = replace(best, match=_by_edges(edges_of(pixels, _EXACT_PX), drawing, best.match))
    elif len(best.match.fit.matrix) == 2:
        best = replace(best, match=_with_keystone(edges_of(pixels, _EXACT_PX), drawing, best))
    rivals = [
        board for board in found if abs(_turned(board, best)) > 45 and best.agreement - board.agreement < _CLEARLY
    ]
    if not rivals:
        is_sure = marks or best.agreement >= _SURE_AGREEMENT
        return best if is_sure else replace(best, doubt="little in it is where the parts are: is it this board at all?")
    turn = _turned(rivals[0], best)
    return replace(best, doubt=f"it fits nearly as well rotated by {turn:.0f} degrees: look at the overlay")


def is_turned_over(
    pixels: DecodedImage, drawing: BoardDrawing, marks: Sequence[Mark], found: FoundBoard | None
) -> bool:
    """Tell whether a board that is not seen for sure is seen as in a mirror: then the file is wrong, or the picture."""
    if found is not None and found.agreement >= _SURE_AGREEMENT:
        return False
    over = [replace(mark, x_mm=2 * float(drawing.middle[0]) - mark.x_mm) for mark in marks]
    other = find_board(pixels, drawing.turned_over, over)
    return other is not None and other.agreement >= _SURE_AGREEMENT


def map_through(points: Numbers, pixels: Numbers, about: tuple[float, float]) -> Fit:
    """Return the map through points (n, 2) in mm that lie at pixels (n, 2): 2 of them, 3, or 4 and more.

    Two tell scale, turn and place, three an affine map, four how the camera looks aslant. Raises ConfigError for three
    or more that lie in one line, or as in a mirror.
    """
    corners = (np.column_stack([points[list(three)], np.ones(3)]) for three in combinations(range(len(points)), 3))
    if len(points) > 2 and not any(abs(np.linalg.det(three)) > _LEAST_ASIDE_MM2 for three in corners):
        raise ConfigError("the points lie on one line; add one that is not on it")
    fit = projective(points, pixels, about) if len(points) > 3 else replace(fitted(points, pixels), about=about)
    if not np.isfinite(fit.matrix).all() or np.linalg.det(fit.linear) >= 0:
        raise ConfigError(
            "the board would be mirrored: two points are mixed up, or x or y of the placement file grows the other way"
        )
    return fit


def board_at(pixels: DecodedImage, drawing: BoardDrawing, marks: Sequence[Mark], rough: Fit) -> FoundBoard:
    """Return the board of a picture (H, W, 3) uint8 RGB that a person says lies as a rough map has it.

    Marks that are seen near there make it exact; without any the map is taken as it is.
    """
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
    edges, size = edges_of(pixels, FINE_PX), (pixels.shape[1], pixels.shape[0])
    ((x, y),) = rough.pixels(drawing.middle[None])
    pose = Pose(1000 / rough.um_per_pixel, rough.turn_deg, float(x), float(y), 0.0)
    match = matched(grey, marks, pose, rough) if marks else None
    if match is None or not _is_possible(match.fit, drawing, max(size) / 2):
        return FoundBoard(MarkMatch((), (), rough), agreement(edges, drawing, rough), size)
    board = FoundBoard(match, agreement(edges, drawing, match.fit), size)
    if len(match.fit.matrix) == 2:
        board = replace(board, match=_with_keystone(edges_of(pixels, _EXACT_PX), drawing, board))
    return board


def _matches(
    grey: Grey, drawing: BoardDrawing, marks: Sequence[Mark], tried: Sequence[Pose], edges: PictureEdges
) -> Iterator[FoundBoard]:
    """Yield the boards that poses lead to."""
    for pose in tried:
        rough = pose.fit(drawing)
        match = matched(grey, marks, pose, rough) if marks else MarkMatch((), (), rough)
        if match is not None and _is_possible(match.fit, drawing, max(grey.shape) / 2):
            yield FoundBoard(match, agreement(edges, drawing, match.fit), (grey.shape[1], grey.shape[0]))


def _is_possible(fit: Fit, drawing: BoardDrawing, half_px: float) -> bool:
    """Tell whether a camera sees a board so: about as wide as high, not mirrored, and no more than a little aslant."""
    about = (float(drawing.middle[0]), float(drawing.middle[1]))
    here = Fit(fit.matrix, about)
    stretches = np.linalg.svd(here.linear, compute_uv=False)
    keystone = _keystone(here, half_px)
    is_flat = stretches[0] < _MOST_ASPECT * stretches[1] and float(np.abs(keystone).max()) < _MOST_KEYSTONE
    return bool(is_flat and np.linalg.det(here.linear) < 0)


def _keystone(here: Fit, half_px: float) -> Numbers:
    """Return by which share all is smaller half a picture to the right, and below, of the point `about`."""
    if len(here.matrix) == 2:
        return np.zeros(2)
    down = here.matrix[2] / (here.matrix[2] @ np.array([*here.about, 1.0]))
    slant: Numbers = np.linalg.solve(here.linear.T, down[:2]) * half_px
    return slant


def _by_edges(edges: PictureEdges, drawing: BoardDrawing, match: MarkMatch) -> MarkMatch:
    """Return a match without marks whose scale, turn and place are as the edges of the parts say, exactly."""
    from scipy.optimize import minimize

    rough, about = match.fit, (float(drawing.middle[0]), float(drawing.middle[1]))
    ((x, y),) = rough.pixels(drawing.middle[None])
    scale, turn = 1000 / rough.um_per_pixel, rough.turn_deg
    reach = float(np.hypot(*drawing.size)) * scale / 2

    def seen(moved: Numbers) -> Fit:  # all in pixels, at the corners of the board
        stretch, turned = 1 + moved[0] / reach, turn + degrees(moved[1] / reach)
        return Pose(scale * stretch, turned, float(x + moved[2]), float(y + moved[3]), 0.0).fit(drawing)

    step = 2 / edges.scale
    simplex = np.vstack([np.zeros(4), step * np.eye(4)])
    best = minimize(
        lambda moved: -agreement(edges, drawing, seen(moved)),
        np.zeros(4),
        method="Nelder-Mead",
        options={"initial_simplex": simplex, "xatol": 0.05, "fatol": 1e-5},
    )
    fit = seen(np.asarray(best.x, np.float64))
    return replace(match, fit=Fit(fit.matrix, about))


def _with_keystone(edges: PictureEdges, drawing: BoardDrawing, board: FoundBoard) -> MarkMatch:
    """Return a match whose map goes through its few marks, and is aslant as the edges of the parts say."""
    from scipy.optimize import minimize

    match, half = board.match, max(board.size_px) / 2
    points = np.array([(mark.x_mm, mark.y_mm) for mark in match.marks])
    pixels = np.array([(disc.x_px, disc.y_px) for disc in match.discs])
    ((x, y),) = match.fit.pixels(drawing.middle[None])
    about = (float(drawing.middle[0]), float(drawing.middle[1]))

    def seen(keystone: Numbers) -> Fit:
        view = view_of(0.0, (float(x), float(y)), (float(keystone[0]), float(keystone[1])), half)
        return fitted(points, through(np.asarray(np.linalg.inv(view), np.float64), pixels)).behind(view, about)

    def disagreement(keystone: Numbers) -> float:
        return -agreement(edges, drawing, seen(keystone))

    steps = np.linspace(-_MOST_SLANT, _MOST_SLANT, 7)
    start = min((np.array([across, down]) for across in steps for down in steps), key=disagreement)
    simplex = [start, start + np.array([0.005, 0.0]), start + np.array([0.0, 0.005])]
    best = minimize(
        disagreement, start, method="Nelder-Mead", options={"initial_simplex": simplex, "xatol": 5e-4, "fatol": 1e-5}
    )
    # Where sizes are wrong, edges tell nothing: the best slant then lies anywhere, or is hardly better than none.
    gain = disagreement(np.zeros(2)) - best.fun
    if gain < _LEAST_GAIN or float(np.abs(best.x).max()) > _MOST_SLANT:
        return match
    return replace(match, fit=seen(np.asarray(best.x, np.float64)))


def _turned(board: FoundBoard, other: FoundBoard) -> float:
    return (board.match.fit.turn_deg - other.match.fit.turn_deg + 180) % 360 - 180


def lie_alike(boards: Sequence[FoundBoard]) -> bool:
    """Tell whether boards lie the same way round, so that a mean says how."""
    return all(abs(_turned(board, boards[0])) < _MOST_APART_DEG for board in boards)


def camera_of(boards: Sequence[FoundBoard], middle: tuple[float, float]) -> FoundCamera:
    """Return the camera that sees boards as they were found; `middle` is that of the outline, in mm."""
    seen = [_seen_board(board, middle) for board in boards]
    first = seen[0]
    turn = first.turn_deg + float(np.mean([(one.turn_deg - first.turn_deg + 180) % 360 - 180 for one in seen]))
    keystone = np.mean([one.keystone for one in seen], axis=0)
    if np.abs(keystone).max() < _LEAST_KEYSTONE:
        keystone = np.zeros(2)
    at = np.mean([one.middle for one in seen], axis=0)
    um_per_pixel = float(np.mean([one.um_per_pixel for one in seen]))
    width, height = boards[0].size_px
    apart = max(dist(one.middle * (width, height), at * (width, height)) for one in seen) * um_per_pixel / 1000
    camera = CameraSpec(
        turn=round((turn + 180) % 360 - 180, 1),
        middle=(_share(at[0]), _share(at[1])),
        keystone=(round(float(keystone[0]), 4), round(float(keystone[1]), 4)),
    )
    differ = max(float(np.abs(one.keystone - keystone).max()) for one in seen) > 2 * _LEAST_KEYSTONE
    return FoundCamera(um_per_pixel, camera, float(apart), differ)


@dataclass(frozen=True, slots=True)
class _Seen:
    um_per_pixel: float
    turn_deg: float
    middle: Numbers
    keystone: Numbers


def _seen_board(board: FoundBoard, middle: tuple[float, float]) -> _Seen:
    """Divide a map into scale, turn, place and keystone at the middle of the outline."""
    fit, (width, height) = board.match.fit, board.size_px
    about = Fit(fit.matrix, middle)
    linear = about.linear
    keystone = _keystone(about, max(width, height) / 2)
    (a, b), (c, d) = linear
    at = (about.pixels(np.array([middle]))[0] + 0.5) / (width, height)
    return _Seen(about.um_per_pixel, degrees(atan2(-c - b, a - d)), at, keystone)


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, float(value))), 4)
