"""The overlay picture: what will be cut out of a board, for a person to confirm before a recipe is used."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.errors import ImageError
from coe.pictures.array_images import DecodedImage, Order, ordered
from coe.placement.board_layout import Layout, Site
from coe.placement.board_pictures import BoardPicture
from coe.placement.crops import outline, pin1
from coe.placement.fiducials import Disc
from coe.placement.fit import Numbers
from coe.placement.location import Location

Colour = tuple[int, int, int]

_CROP, _OUTSIDE, _SKIPPED = (0, 255, 230), (255, 80, 60), (150, 150, 150)
_PIN, _FIDUCIAL, _WINDOW, _INK = (255, 60, 220), (255, 220, 0), (255, 160, 0), (255, 255, 255)
_FONT, _SUB = cv2.FONT_HERSHEY_SIMPLEX, 4
_TEXT_PX = 11
"""The height of letters in the overlay."""


def overlay_of(board: BoardPicture, side_px: int = 1600, order: Order = "BGR") -> DecodedImage:
    """Return the overlay of a board, (h, w, 3) uint8 in `order`; raises ImageError if its picture cannot be read."""
    if board.rgb is None or board.location is None:
        raise ImageError(f"{board.name}: {board.why}")
    return ordered(overlay(board.rgb, board.layout, board.location, side_px), order)


def overlay(pixels: DecodedImage, layout: Layout, location: Location, side_px: int = 1600) -> DecodedImage:
    """Return a picture of a board with everything that is cut out of it, (h, w, 3) uint8 RGB, `side_px` a side at most.

    Each crop has its outline and reference designator, and a dot at the corner of its pin 1; crops outside of the
    picture are red, and those of skipped units grey and crossed out. Fiducials have a ring and a cross. A board that is
    not registered shows where fiducials were searched, and the reason. `pixels` is the whole picture.
    """
    height, width = pixels.shape[:2]
    drawing = _Drawing(pixels, min(1.0, side_px / max(height, width)))
    if location.fit is not None:
        for site in layout.sites:
            _draw_site(drawing, site, location, width, height)
    else:
        reach = layout.recipe.fiducials.search if layout.recipe.fiducials is not None else 0.0
        for name, point in layout.fiducials.items():
            square = np.array([(-1, 1), (1, 1), (1, -1), (-1, -1)]) * reach + (point.x_mm, point.y_mm)
            drawing.polygon(location.expected.pixels(square), _WINDOW)
            drawing.words(name, location.expected.pixels(square[:1])[0], _WINDOW)
    _draw_fiducials(drawing, {**location.found, **_landmark(layout, location)})
    drawing.heading(heading_lines(location))
    return drawing.pixels


def _landmark(layout: Layout, location: Location) -> dict[str, Disc]:
    """Return where the landmark lies, if there is one, on a board that is registered."""
    mark, at = layout.recipe.landmark, layout.landmark
    if mark is None or at is None or location.fit is None:
        return {}
    ((x, y),) = location.fit.pixels(np.array([[at.x_mm, at.y_mm]]))
    return {"landmark": Disc(float(x), float(y), mark.diameter * 1000 / location.fit.um_per_pixel, 1.0, 0.0)}


def heading_lines(location: Location) -> list[str]:
    """Return the text above an overlay: how the board is registered, or each reason why it is not; skipped units."""
    if location.fit is not None:
        how = "held" if location.residual_um is None else f"registered: residual {location.residual_um:.1f} um"
        lines = [f"{how}, {location.fit.um_per_pixel:.3f} um a pixel, rotated by {location.fit.turn_deg:.2f} degrees"]
    else:
        lines = [f"not registered: {reason}" for reason in location.reasons]
    return lines + [f"{unit} is skipped: {why}" for unit, why in location.skipped.items()]


def _draw_site(drawing: _Drawing, site: Site, location: Location, width: int, height: int) -> None:
    assert location.fit is not None
    where = outline(site, location.fit, width, height)
    skipped = site.unit in location.skipped
    colour = _SKIPPED if skipped else _OUTSIDE if where.outside_px else _CROP
    drawing.polygon(where.corners, colour)
    if skipped:
        drawing.line(where.corners[0], where.corners[2], colour)
        drawing.line(where.corners[1], where.corners[3], colour)
    else:
        drawing.dot(pin1(where, site.crop), _PIN)
    # At the lower edge as the picture lies, where it hides little of the part.
    lowest = where.corners[:, 1].max()
    drawing.words(site.refdes, np.array([where.corners[:, 0].mean(), lowest]), colour, centred=True)


def _draw_fiducials(drawing: _Drawing, discs: Mapping[str, Disc]) -> None:
    for name, disc in discs.items():
        middle, radius = np.array([disc.x_px, disc.y_px]), disc.diameter_px * 0.7
        turns = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        drawing.polygon(middle + radius * np.column_stack([np.cos(turns), np.sin(turns)]), _FIDUCIAL)
        for arm in (np.array([radius, 0]), np.array([0, radius])):
            drawing.line(middle - arm, middle + arm, _FIDUCIAL)
        drawing.words(name, middle + np.array([radius, -radius]), _FIDUCIAL)


class _Drawing:
    """A picture made smaller, and strokes at places of the whole picture."""

    def __init__(self, pixels: DecodedImage, scale: float) -> None:
        self._scale = scale
        small = pixels if scale == 1.0 else cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        # Darker, so that the strokes are clear on any board.
        self.pixels = np.ascontiguousarray(small * np.float32(0.75)).astype(np.uint8)

    def _at(self, points: Numbers) -> NDArray[np.int32]:
        """Return points of the whole picture in the fixed point that OpenCV draws with."""
        return np.asarray(np.round(((points + 0.5) * self._scale - 0.5) * (1 << _SUB)), np.int32)

    def polygon(self, points: Numbers, colour: Colour) -> None:
        cv2.polylines(self.pixels, [self._at(points)], True, colour, 1, cv2.LINE_AA, _SUB)

    def line(self, start: Numbers, end: Numbers, colour: Colour) -> None:
        cv2.polylines(self.pixels, [self._at(np.array([start, end]))], False, colour, 1, cv2.LINE_AA, _SUB)

    def dot(self, at: Numbers, colour: Colour) -> None:
        x, y = (int(value) for value in self._at(at))
        cv2.circle(self.pixels, (x, y), 4 << _SUB, colour, -1, cv2.LINE_AA, _SUB)

    def words(self, text: str, at: Numbers, colour: Colour, *, centred: bool = False) -> None:
        x, y = (int(value) >> _SUB for value in self._at(at))
        size = cv2.getFontScaleFromHeight(_FONT, _TEXT_PX, 1)
        (wide, high), _ = cv2.getTextSize(text, _FONT, size, 1)
        place = (x - wide // 2, y + high // 2) if centred else (x + 2, y - 3)
        for ink, thick in (((0, 0, 0), 3), (colour, 1)):
            cv2.putText(self.pixels, text, place, _FONT, size, ink, thick, cv2.LINE_AA)

    def heading(self, lines: list[str]) -> None:
        """Put a band with lines of text above the picture; long lines are broken."""
        size = cv2.getFontScaleFromHeight(_FONT, _TEXT_PX, 1)
        broken = [part for line in lines for part in self._broken(line, size)]
        band = np.zeros((len(broken) * 2 * _TEXT_PX + _TEXT_PX, self.pixels.shape[1], 3), np.uint8)
        for number, line in enumerate(broken, 1):
            at = (_TEXT_PX, number * 2 * _TEXT_PX)
            cv2.putText(band, line, at, _FONT, size, _INK, 1, cv2.LINE_AA)
        self.pixels = np.vstack([band, self.pixels])

    def _broken(self, line: str, size: float) -> list[str]:
        parts = [""]
        for word in line.split():
            longer = f"{parts[-1]} {word}".strip()
            fits = cv2.getTextSize(longer, _FONT, size, 1)[0][0] <= self.pixels.shape[1] - 2 * _TEXT_PX
            parts[-1:] = [longer] if fits or not parts[-1] else [parts[-1], word]
        return parts
