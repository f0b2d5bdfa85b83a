"""A board's layout: where the camera sees each component. Only this file mirrors a side, or places a unit.

The frame of a layout is the board as the camera sees it: mm, x to the right, y up, angles counterclockwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from math import cos, radians, sin

from coe import config
from coe.board.parts_file import Side
from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError, did_you_mean
from coe.placement.board_recipe import BoardRecipe
from coe.placement.inspected_parts import inspected_units, is_left_out, moved_marks
from coe.placement.placement_file import Placement
from coe.placement.recipe_spec import Corner, PackageSpec, UnitSpec


class BottomX(StrEnum):
    """From where the x of a part on the bottom side counts."""

    TOP = "top"
    """As seen from the top, through the board: the camera sees it mirrored."""
    BOTTOM = "bottom"
    """As seen from the bottom: mirrored already."""


class BottomAngle(StrEnum):
    """What the angle of a part on the bottom side means."""

    TOP = "top"
    """Counterclockwise as seen from the top; a part at 0 is mirrored left to right."""
    TOP_180 = "top-180"
    """Counterclockwise as seen from the top; a part at 0 is mirrored top to bottom, as in KiCad."""
    BOTTOM = "bottom"
    """Counterclockwise as seen from the bottom."""


@dataclass(frozen=True, slots=True)
class Bottom:
    """How a placement file describes the bottom side; without it a layout of the bottom side is refused."""

    x: BottomX
    angle: BottomAngle

    @classmethod
    def of(cls, x: str, angle: str) -> Bottom:
        """Return a description made of a word for each field; raises ConfigError for unknown words."""
        for name, word, known in (("x", x, BottomX), ("angle", angle, BottomAngle)):
            if word not in set(known):
                raise ConfigError(f"bottom {name} '{word}' is not known; give {', '.join(known)}")
        return cls(BottomX(x), BottomAngle(angle))

    def x_of(self, x_mm: float) -> float:
        """Return an x of the file as the camera sees it, and back."""
        return -x_mm if self.x is BottomX.TOP else x_mm

    def angle_of(self, angle_deg: float) -> float:
        """Return an angle of the file, from 0 to 360, as the camera sees it, and back."""
        seen = {BottomAngle.TOP: -angle_deg, BottomAngle.TOP_180: 180.0 - angle_deg, BottomAngle.BOTTOM: angle_deg}
        return seen[self.angle] % 360.0


@dataclass(frozen=True, slots=True)
class Point:
    """A point as the camera sees the board, in mm."""

    x_mm: float
    y_mm: float


@dataclass(frozen=True, slots=True)
class CropShape:
    """A crop: its size on the board in mm, its size in pixels, and the corner of the part's first pin."""

    width_mm: float
    height_mm: float
    width_px: int
    height_px: int
    pin1: Corner


@dataclass(frozen=True, slots=True)
class Site:
    """A component on a board: where the camera sees its middle, and how far it is turned from upright.

    `unit` is the name of its board on a panel, and empty without a panel.
    """

    unit: str
    refdes: str
    component: str
    at: Point
    angle_deg: float
    crop: CropShape

    @property
    def name(self) -> str:
        """The name of the site in a picture: `R1`, or `r1c1/R1` on a panel."""
        return f"{self.unit}/{self.refdes}" if self.unit else self.refdes

    @property
    def corners(self) -> tuple[Point, Point, Point, Point]:
        """The corners of its crop: the upright crop's top left, top right, bottom right, bottom left."""
        right, up = self.crop.width_mm / 2, self.crop.height_mm / 2
        across, along = cos(radians(self.angle_deg)), sin(radians(self.angle_deg))
        top_left, top_right, bottom_right, bottom_left = (
            Point(self.at.x_mm + x * across - y * along, self.at.y_mm + x * along + y * across)
            for x, y in ((-right, up), (right, up), (right, -up), (-right, -up))
        )
        return top_left, top_right, bottom_right, bottom_left


@dataclass(frozen=True, slots=True)
class Layout:
    """All that is inspected in a picture of a whole board.

    `sites` are in the order of the units, then of the placement file. `not_inspected` are the reference designators
    that the recipe leaves out. `marks` are the places of the bad marks by unit. `low` and `high` are corners of the
    outline. `landmark` is the place of the recipe's landmark, `codes` are those of the serials by unit, "" for the
    panel's. `moved_marks` are the recipe's fiducials as the placement file has them, if it has all of them elsewhere.
    `digest` tells two layouts apart.
    """

    recipe: BoardRecipe
    sites: tuple[Site, ...]
    fiducials: Mapping[str, Point]
    low: Point
    high: Point
    marks: Mapping[str, Point] = field(default_factory=dict)
    not_inspected: tuple[str, ...] = ()
    digest: str = ""
    landmark: Point | None = None
    codes: Mapping[str, Site] = field(default_factory=dict)
    moved_marks: tuple[Placement, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """The names of the units; a single board is a unit without a name."""
        return tuple(dict.fromkeys(site.unit for site in self.sites))

    @property
    def parts(self) -> tuple[PlacedPart, ...]:
        """The parts of one board in the order of their crops: the parts list of an `Inspector`."""
        return tuple(PlacedPart(site.component, site.refdes) for site in self.sites if site.unit == self.sites[0].unit)

    @property
    def middle(self) -> tuple[float, float]:
        """The middle of the outline in mm."""
        return (self.low.x_mm + self.high.x_mm) / 2, (self.low.y_mm + self.high.y_mm) / 2

    def check(self, components: Mapping[str, object], board: str) -> None:
        """Raise ConfigError if the layout has components that the rules of a board do not have."""
        for name in dict.fromkeys(site.component for site in self.sites):
            if name not in components:
                raise ConfigError(
                    f"{self.recipe.path.name}: '{name}' is not a component of board '{board}'"
                    f"{did_you_mean(name, components)}"
                )


def lay_out(recipe: BoardRecipe, placements: Sequence[Placement], bottom: Bottom | None = None) -> Layout:
    """Return the layout of a board with these placements, as the camera sees it.

    `bottom` says how the placements describe the bottom side: it is needed if the recipe is of the bottom side, and
    refused if it is of the top side, where it would say nothing. Raises ConfigError for this, for a side without
    parts, a part whose component is not known, and a part that lies outside of the outline.
    """
    if (recipe.side is Side.BOTTOM) != (bottom is not None):
        raise ConfigError(
            f"{recipe.path.name} is of the top side; leave out how the bottom side is described"
            if bottom is not None
            else f"{recipe.path.name} is of the bottom side; say how the placement file describes that side: its x as "
            f"seen from top or bottom, its angles as top, top-180 or bottom"
        )
    chosen = [place for place in placements if place.side is recipe.side and not place.is_fiducial]
    left_out = {place.refdes for place in placements if is_left_out(recipe, place)}
    of_panel = recipe.panel is not None and recipe.panel.refdes is not None
    known = left_out | {
        word for word in recipe.not_inspected if of_panel for p in placements if p.refdes.endswith(word)
    }
    if unknown := [word for word in recipe.not_inspected if "*" not in word and word not in known]:
        raise ConfigError(f"{recipe.path.name}: '{unknown[0]}' under not_inspected is not in the placement file")
    of_units = inspected_units(recipe, [place for place in chosen if place.refdes not in left_out])
    frame = _BoardFrame(bottom)
    sites = tuple(
        _site(recipe, frame, place, component, name, unit)
        for name, unit, inspected in of_units
        for place, component in inspected
    )
    if not sites:
        raise ConfigError(f"the placement file has no part on the {recipe.side} side that {recipe.path.name} inspects")
    corners = [frame.point(x, y) for x, y in zip(recipe.outline.x, recipe.outline.y, strict=True)]
    low = Point(min(corner.x_mm for corner in corners), corners[0].y_mm)
    high = Point(max(corner.x_mm for corner in corners), corners[1].y_mm)
    _check_inside(recipe, sites, low, high)
    marks = {}
    if recipe.bad_mark is not None:
        marks = {name: frame.in_unit(unit, *recipe.bad_mark.at) for name, unit in recipe.units.items()}
    codes = _codes(recipe, frame)
    _check_inside(recipe, list(codes.values()), low, high)
    facts = (recipe.digest, bottom and astuple(bottom), [astuple(place)[:-2] for place in placements])
    return Layout(
        recipe,
        sites,
        {name: frame.point(x, y) for name, (x, y) in (recipe.fiducials.at if recipe.fiducials else {}).items()},
        low,
        high,
        marks,
        tuple(place.refdes for place in chosen if place.refdes in left_out),
        hashlib.sha256(repr(facts).encode()).hexdigest(),
        None if recipe.landmark is None else frame.point(*recipe.landmark.at),
        codes,
        moved_marks(recipe, placements),
    )


@dataclass(frozen=True, slots=True)
class _BoardFrame:
    """From the frame of the placement file to that of the camera."""

    bottom: Bottom | None

    def point(self, x: float, y: float) -> Point:
        return Point(x if self.bottom is None else self.bottom.x_of(x), y)

    def in_unit(self, unit: UnitSpec, x: float, y: float) -> Point:
        """Return a point of a unit's frame, turned and moved with the unit."""
        turn = radians(unit.rotation)
        return self.point(unit.at[0] + x * cos(turn) - y * sin(turn), unit.at[1] + x * sin(turn) + y * cos(turn))

    def angle(self, unit: UnitSpec, angle_deg: float) -> float:
        """Return the angle of a part on a unit: the unit turns as the file's x and y do, the part as its angle says."""
        if self.bottom is None:
            return (angle_deg + unit.rotation) % 360.0
        turned = -unit.rotation if self.bottom.x is BottomX.TOP else unit.rotation
        return (self.bottom.angle_of(angle_deg) + turned) % 360.0


def _site(recipe: BoardRecipe, frame: _BoardFrame, place: Placement, component: str, name: str, unit: UnitSpec) -> Site:
    form = recipe.components[component]
    angle = (frame.angle(unit, place.rotation_deg) + form.turn) % 360.0
    at = frame.in_unit(unit, place.x_mm, place.y_mm)
    return Site(name, place.refdes, component, at, angle, _shape(recipe, component, form))


def _codes(recipe: BoardRecipe, frame: _BoardFrame) -> dict[str, Site]:
    """Return where the codes of the serials lie, by unit."""
    if (code := recipe.serial) is None:
        return {}
    units = recipe.units if code.each == "unit" else {"": UnitSpec(at=(0.0, 0.0))}
    shape = _shape(recipe, "serial", PackageSpec(size=code.size, margin=0))
    return {
        name: Site(name, "serial", "serial", frame.in_unit(unit, *code.at), frame.angle(unit, 0.0), shape)
        for name, unit in units.items()
    }


def _shape(recipe: BoardRecipe, component: str, form: PackageSpec) -> CropShape:
    """Return the crop of a component; `size` is that of the package as it lies upright in the crop."""
    width, height = (side + 2 * form.margin for side in form.size)
    scale = form.crop / max(width, height) if form.crop is not None else 1000 / recipe.um_per_pixel
    width_px, height_px = round(width * scale), round(height * scale)
    if min(width_px, height_px) < config.MIN_IMAGE_SIDE:
        raise ConfigError(
            f"{recipe.path.name}: the crop of '{component}' would have {width_px} x {height_px} pixels; at least "
            f"{config.MIN_IMAGE_SIDE} x {config.MIN_IMAGE_SIDE} are needed: give it a larger size, margin or crop, "
            "or pictures of more pixels"
        )
    if width_px * height_px > config.MAX_IMAGE_PIXELS:
        raise ConfigError(f"{recipe.path.name}: the crop of '{component}' would be larger than any picture")
    return CropShape(width, height, width_px, height_px, form.pin1)


def _check_inside(recipe: BoardRecipe, sites: Sequence[Site], low: Point, high: Point) -> None:
    for site in sites:
        if not (low.x_mm <= site.at.x_mm <= high.x_mm and low.y_mm <= site.at.y_mm <= high.y_mm):
            seen = " (as the camera sees it)" if recipe.side is Side.BOTTOM else ""
            raise ConfigError(
                f"{site.name} lies at ({site.at.x_mm:.2f}, {site.at.y_mm:.2f}) mm{seen}, outside of the outline in "
                f"{recipe.path.name}: x {low.x_mm:g} to {high.x_mm:g}, y {low.y_mm:g} to {high.y_mm:g}; are units, "
                "origin and side right?"
            )
