"""How a board could lie wrong without being noticed: where its fiducials lie alike, and no landmark tells it."""

from __future__ import annotations

from collections.abc import Iterator
from math import dist

import numpy as np

from coe.placement.board_layout import Layout, Point
from coe.placement.disc_choices import choices_of, points_of
from coe.placement.fiducials import Disc
from coe.placement.fit import Numbers

_WAYS: tuple[tuple[str, Numbers], ...] = tuple(
    (words, np.array(way, np.float64))
    for words, ways in {
        "mirrored": (((-1, 0), (0, 1)), ((1, 0), (0, -1)), ((0, 1), (1, 0)), ((0, -1), (-1, 0))),
        "turned by 180 degrees": (((-1, 0), (0, -1)),),
        "turned by 90 degrees": (((0, -1), (1, 0)), ((0, 1), (-1, 0))),
    }.items()
    for way in ways
)
"""How a board may lie wrong, as maps of its points; a picture may be mirrored and turned, too."""

_AS_LONG = 0.05
"""An outline whose sides differ by less goes into a fixture turned by 90 degrees, too."""
_UNHELD = "not as its fixture holds it"


def blind_to(layout: Layout) -> tuple[str, ...]:
    """Return in which ways a board could lie wrong without being noticed.

    Its fiducials lie alike then, within the limits of the recipe, and its landmark, if it has one, lies alike, too. A
    board that a fixture holds is not looked for at all: a landmark alone notices anything.
    """
    if layout.recipe.held and layout.recipe.landmark is None:
        return (_UNHELD,)
    return tuple(dict.fromkeys(words for words, place in alike(layout) if not tells(layout, place)))


def warnings_of(layout: Layout) -> tuple[str, ...]:
    """Return what a person must know before boards are cut by a layout, a sentence for each way to lie wrong."""
    held = layout.recipe.held
    more: tuple[str, ...] = ()
    if held and layout.recipe.picture is None:
        more = (
            "pictures of any size are accepted, and the parts lie elsewhere in those of another size, unnoticed; add "
            "`picture: [width, height]` in pixels to the board recipe",
        )
    if blind_to(layout) == (_UNHELD,):
        return (
            "no fiducials locate the board: if it has moved in its fixture, it is cut wrongly, unnoticed; "
            "add a landmark to the board recipe",
            *more,
        )
    what = "landmark coincides" if held else "fiducials coincide"
    more += tuple(
        f"{mark.refdes} lies at ({mark.x_mm:g}, {mark.y_mm:g}) mm in parts.csv, and no fiducial is where the "
        "board recipe has it: are both of the same board and revision, with the same origin?"
        for mark in layout.moved_marks[:1]
    )
    return more + tuple(
        f"the {what} if the board is {way}: such a board goes unnoticed and is cut wrongly; name a "
        "landmark or other fiducials in the board recipe"
        for way in blind_to(layout)
    )


def alike(layout: Layout) -> Iterator[tuple[str, Point]]:
    """Yield each way to lie in which the fiducials lie alike, and the point that would be taken for the landmark then.

    Without a landmark that is any point. A fixture takes a board each way round that its outline lies alike.
    """
    recipe, at = layout.recipe, layout.landmark or layout.low
    if recipe.fiducials is None:
        middle, size = np.array(layout.middle), points_of([layout.high])[0] - points_of([layout.low])[0]
        for words, way in _WAYS:
            if np.allclose(np.abs(way @ size), size, rtol=_AS_LONG):
                x, y = (points_of([at])[0] - middle) @ way.T + middle
                yield words, Point(float(x), float(y))
        return
    points, scale = points_of(layout.fiducials.values()), 1000 / recipe.um_per_pixel
    down = np.array([scale, -scale])
    for words, way in _WAYS:
        moved = [
            Disc(float(x), float(y), recipe.fiducials.diameter * scale, 1.0, 1.0) for x, y in points @ way.T * down
        ]
        for choice in choices_of(points, [moved] * len(points), layout):
            # No two boards are alike, and neither are two pictures of one board.
            if choice.residual_um <= 2 * recipe.tolerance_um and len(set(choice.discs)) == len(moved):
                ((x, y),) = choice.fit.pixels(points_of([at])) / down @ way
                yield words, Point(float(x), float(y))


def tells(layout: Layout, place: Point) -> bool:
    """Return whether the landmark tells a way to lie, in which this place would be taken for its own."""
    mark, at = layout.recipe.landmark, layout.landmark
    if mark is None or at is None:
        return False
    return dist((place.x_mm, place.y_mm), (at.x_mm, at.y_mm)) > mark.diameter
