"""How a board lies in a picture of a draft, for a person who looks at it, and moves it until it fits.

The map is that of `coe-board new`: of the recipe's camera and the marks that are found, or through the points that a
person shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import dist
from pathlib import Path
from typing import Any

import numpy as np

from coe.bring.board.draft_recipe import BoardPlan, plan
from coe.bring.board.first_board import marks_of
from coe.bring.board.found_camera import map_through
from coe.bring.parts.converting import Converted
from coe.errors import ConfigError
from coe.placement import Layout, Location, Side, read_board
from coe.placement.fit import Fit, Numbers
from coe.serve.teach.teach_draft import BoardDraft, DraftState

_MOST_POINTS = 12
_HAND_UM = 500  # so far from a mark a person may click who means that mark


def planned(draft: BoardDraft) -> BoardPlan:
    """Return what the placement file tells of the side that is seen; raises ConfigError."""
    return planned_of(draft.read(), draft.state)


def planned_of(read: Converted, state: DraftState) -> BoardPlan:
    """Return what a placement file tells that reads as a person says; raises ConfigError."""
    if state.side not in set(Side):
        raise ConfigError(f"'{state.side}' is not a side; give top or bottom")
    drawn = plan(read, Side(state.side))
    if len(drawn.marks) < 2 and not state.held:
        raise ConfigError(
            "the placement file has no two fiducials (FID1, FID2, ...) or mounting holes (H1, H2, ... of a package "
            "MountingHole); export them too, or say that a fixture holds each board in one place"
        )
    return drawn


def shown(draft: BoardDraft, picture: Path) -> dict[str, Any]:
    """Return how a board lies in a picture: each part's corners in mm, the map from mm to pixels, and what was found.

    `points` are marks and parts far from each other that a person may show instead; where a person did, that is the
    map (`by_hand`), unless the marks are found where the person meant. Raises ConfigError.
    """
    layout = draft.layout
    board = read_board(picture, layout, picture.stem)
    if board.rgb is None or board.location is None:
        raise ConfigError(f"{picture.name}: {board.why}")
    height, width = board.rgb.shape[:2]
    why = board.location.why or ("" if draft.is_found else "show where points of it lie")
    location = as_shown(draft, picture.name, board.location)
    by_hand = location is not board.location
    return {
        "picture": picture.name,
        "size": [width, height],
        "registered": location.fit is not None and (by_hand or draft.is_found),
        "by_hand": by_hand,
        "held": layout.recipe.held,
        "why": why,
        "residual_um": location.residual_um,
        "um_per_pixel": (location.fit or location.expected).um_per_pixel,
        "turn_deg": (location.fit or location.expected).turn_deg,
        "matrix": matrix_of(location.fit or location.expected),
        "parts": parts_of(layout),
        "marks": [{"at": [disc.x_px, disc.y_px], "diameter": disc.diameter_px} for disc in location.found.values()],
        "points": [{"name": name, "at": list(at)} for name, at in points(draft).items()],
    }


def parts_of(layout: Layout) -> list[dict[str, Any]]:
    """Return name, corners (4, 2) in mm and the corner of pin 1 of each part, as the camera sees them."""
    corners = ("top-left", "top-right", "bottom-right", "bottom-left")
    return [
        {
            "refdes": site.name,
            "corners": [[corner.x_mm, corner.y_mm] for corner in site.corners],
            "pin": corners.index(site.crop.pin1),
        }
        for site in layout.sites
    ]


def points(draft: BoardDraft) -> dict[str, tuple[float, float]]:
    """Return marks, and parts that lie far from each other, by name: where the camera sees them, in mm."""
    drawn = planned(draft)
    found = {mark.name: (mark.x_mm, mark.y_mm) for mark in drawn.seen_marks}
    parts = {place.refdes: (drawn.seen_x(place.x_mm), place.y_mm) for place in drawn.placements}
    return dict(list((found | _far(parts)).items())[:_MOST_POINTS])


def _far(parts: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    x, y = ([at[axis] for at in parts.values()] for axis in (0, 1))
    corners = [(min(x), min(y)), (max(x), min(y)), (max(x), max(y)), (min(x), max(y))]
    names = [min(parts, key=lambda name: dist(parts[name], corner)) for corner in corners]
    return {name: parts[name] for name in dict.fromkeys(names)}


def as_shown(draft: BoardDraft, name: str, found: Location) -> Location:
    """Return where a person showed the board, but `found` if that is near, as it is more exact; raises ConfigError."""
    if name not in draft.state.shown:
        return found
    mm, pixels = _pairs(draft, draft.state.shown[name])
    if found.fit is not None:
        off_px = np.linalg.norm(found.fit.pixels(mm) - pixels, axis=1).max()
        if off_px * found.fit.um_per_pixel <= _HAND_UM:
            return found
    fit = map_through(mm, pixels, draft.layout.middle)
    return Location(fit, {}, fit)


def through(draft: BoardDraft, seen: Mapping[str, Sequence[float]]) -> Fit:
    """Return the map through named points that lie at pixels; raises ConfigError if they do not determine one."""
    return map_through(*_pairs(draft, seen), draft.layout.middle)


def _pairs(draft: BoardDraft, seen: Mapping[str, Sequence[float]]) -> tuple[Numbers, Numbers]:
    found = marks_of(seen, planned(draft))
    if len(found) < 2:
        raise ConfigError("show two points, or four if the camera is tilted")
    mm, pixels = np.array(list(found)), np.array(list(found.values()))
    return mm, pixels


def as_words(seen: Mapping[str, Sequence[float]]) -> list[str]:
    """Return points as `--mark` of `coe-board new` takes them."""
    return [f"{name}={x:.2f},{y:.2f}" for name, (x, y) in seen.items()]


def matrix_of(fit: Fit) -> list[list[float]]:
    """Return a map from mm to pixels as a matrix (3, 3)."""
    whole = fit.matrix if len(fit.matrix) == 3 else np.vstack([fit.matrix, [0.0, 0.0, 1.0]])
    return [[float(value) for value in row] for row in whole]
