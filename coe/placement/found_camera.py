"""How a camera sees a board, measured in pictures of it: the figures of a recipe that no file tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import atan2, degrees, dist

import cv2
import numpy as np

from coe.errors import ConfigError
from coe.pictures.array_images import DecodedImage
from coe.placement.board_layout import Layout
from coe.placement.constellation import constellations
from coe.placement.draft_recipe import Mark
from coe.placement.fiducials import Grey
from coe.placement.fit import Fit, Numbers, fitted, projective, through, view_of
from coe.placement.mark_match import MarkMatch, matched
from coe.placement.pose_search import FINE_PX, BoardDrawing, PictureEdges, Pose, agreement, edges_of, poses
from coe.placement.recipe_spec import CameraSpec

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
        return best if is_sure else replace(best, doubt="little in it lies as the parts do: is it this board at all?")
    turn = _turned(rivals[0], best)
    return replace(best, doubt=f"it fits nearly as well turned by {turn:.0f} degrees: look at the overlay")


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
        raise ConfigError("the points that are shown lie in one line; show one that lies aside of it")
    fit = projective(points, pixels, about) if len(points) > 3 else replace(fitted(points, pixels), about=about)
    if not np.isfinite(fit.matrix).all() or np.linalg.det(fit.linear) >= 0:
        raise ConfigError(
            "the board would lie mirrored: two points are mixed up, or x or y of the placement file grows the other way"
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
    seen = [_seen(board, middle) for board in boards]
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


def _seen(board: FoundBoard, middle: tuple[float, float]) -> _Seen:
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
