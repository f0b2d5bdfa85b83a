"""A board's layout: where the camera sees each component. Only this file mirrors a side, or places a unit.

The frame of a layout is the board as the camera sees it: mm, x to the right, y up, angles counterclockwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from math import cos, dist, radians, sin

from coe import config
from coe.board.parts_list import NAME, BoardPart, PlacedPart, Side
from coe.errors import ConfigError, did_you_mean, list_few
from coe.placement.board_recipe import BoardRecipe
from coe.placement.panel_split import split
from coe.placement.recipe_spec import Corner, PackageSpec, UnitSpec


@dataclass(frozen=True, slots=True)
class Point:
    """A point as the camera sees the board, in mm."""

    x_mm: float
    y_mm: float


@dataclass(frozen=True, slots=True)
class CropShape:
    """A crop: its size on the board in mm, its size in pixels, and the corner of the part's pin 1."""

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

    `sites` are in the order of the units, then of `parts.csv`. `not_inspected` are the reference designators of its
    rows without a component. `marks` are the places of the bad marks by unit. `low` and `high` are corners of the
    outline. `landmark` is the place of the recipe's landmark, `codes` are those of the serials by unit, "" for the
    panel's. `moved_marks` are the recipe's fiducials as `parts.csv` has them, if it has all of them elsewhere.
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
    moved_marks: tuple[BoardPart, ...] = ()

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


def lay_out(recipe: BoardRecipe, parts: Sequence[BoardPart]) -> Layout:
    """Return the layout of a board with the rows of its `parts.csv`, as the camera sees it.

    Raises ConfigError for a side without parts, a part whose component the recipe does not have, a designator that
    stands twice, and a part that lies outside of the outline.
    """
    chosen = [part for part in parts if part.side is recipe.side]
    frame = _BoardFrame(-1.0 if recipe.side is Side.BOTTOM else 1.0)
    sites = tuple(
        _site(recipe, frame, part, name, unit)
        for name, unit, inspected in _inspected_units(recipe, [part for part in chosen if part.component])
        for part in inspected
    )
    if not sites:
        raise ConfigError(f"{recipe.path.name} is for the {recipe.side} side, but {NAME} has no part to inspect there")
    corners = [frame.point(x, y) for x, y in zip(recipe.outline.x, recipe.outline.y, strict=True)]
    low = Point(min(corner.x_mm for corner in corners), corners[0].y_mm)
    high = Point(max(corner.x_mm for corner in corners), corners[1].y_mm)
    _check_inside(recipe, sites, low, high)
    marks = {}
    if recipe.bad_mark is not None:
        marks = {name: frame.in_unit(unit, *recipe.bad_mark.at) for name, unit in recipe.units.items()}
    codes = _codes(recipe, frame)
    _check_inside(recipe, list(codes.values()), low, high)
    facts = (recipe.digest, [astuple(part)[:6] for part in parts])
    return Layout(
        recipe,
        sites,
        {name: frame.point(x, y) for name, (x, y) in (recipe.fiducials.at if recipe.fiducials else {}).items()},
        low,
        high,
        marks,
        tuple(part.refdes for part in chosen if not part.component),
        hashlib.sha256(repr(facts).encode()).hexdigest(),
        None if recipe.landmark is None else frame.point(*recipe.landmark.at),
        codes,
        _moved_marks(recipe, chosen),
    )


def _inspected_units(
    recipe: BoardRecipe, parts: Sequence[BoardPart]
) -> list[tuple[str, UnitSpec, Sequence[BoardPart]]]:
    """Return each unit's name, where it lies, and the parts on it; raises ConfigError."""
    if unknown := [part for part in parts if part.component not in recipe.components]:
        raise ConfigError(_unknown(recipe, unknown))
    boards: Mapping[str, Sequence[BoardPart]] = {"": parts}
    if recipe.panel is not None and recipe.panel.refdes is not None:
        boards = split(parts, recipe.panel.refdes)
        lines = {part.line for board in boards.values() for part in board}
        if homeless := [part.refdes for part in parts if part.line not in lines]:
            raise ConfigError(
                f"{recipe.path.name}: {list_few(homeless)} {'is' if len(homeless) == 1 else 'are'} on no board of the "
                f"panel, whose parts are named '{recipe.panel.refdes}'; list them under not_inspected of answers.yaml"
            )
    for board in boards.values():
        lines_of: dict[str, list[str]] = {}
        for part in board:
            lines_of.setdefault(part.refdes, []).append(str(part.line))
        if twice := [refdes for refdes, where in lines_of.items() if len(where) > 1]:
            more = f", and so do {len(twice) - 1} further parts" if len(twice) > 1 else ""
            raise ConfigError(
                f"'{twice[0]}' is in lines {', '.join(lines_of[twice[0]])} of {NAME}{more}; remove all but one"
            )
    if boards.keys() != {""}:
        whole = UnitSpec(at=(0.0, 0.0))  # the parts have places on the panel
        return [(name, whole, board) for name, board in boards.items()]
    return [(name, unit, parts) for name, unit in recipe.units.items()]


def _unknown(recipe: BoardRecipe, parts: Sequence[BoardPart]) -> str:
    """Return the sentence about parts whose components a recipe lacks, with entries to paste."""
    names: dict[str, list[str]] = {}
    for part in parts:
        names.setdefault(part.component, []).append(part.refdes)
    entries = [f"  {name}: {{size: [TODO, TODO]}}  # {list_few(refdes, 4)}" for name, refdes in names.items()]
    first = parts[0]
    return (
        f"{recipe.path.name}: {first.refdes} (line {first.line} of {NAME}) is '{first.component}', which is not "
        f"a component of the recipe{did_you_mean(first.component, recipe.components)}"
        + (f", and so are {len(parts) - 1} further parts" if len(parts) > 1 else "")
        + "; name a component of the recipe under packages of answers.yaml, or add to components, each with "
        "its size in mm:\n" + "\n".join(entries)
    )


def _moved_marks(recipe: BoardRecipe, parts: Sequence[BoardPart]) -> tuple[BoardPart, ...]:
    """Return the recipe's fiducials that a file names, if it has two or more, and none where the recipe has it."""
    if recipe.fiducials is None or recipe.panel is not None:
        return ()
    at, near = recipe.fiducials.at, recipe.fiducials.diameter
    marks = [part for part in parts if part.refdes in at and not part.component]
    is_moved = len(marks) > 1 and all(dist((part.x_mm, part.y_mm), at[part.refdes]) > near for part in marks)
    return tuple(marks) if is_moved else ()


@dataclass(frozen=True, slots=True)
class _BoardFrame:
    """From the frame of `parts.csv`, the board as seen from the top, to that of the camera.

    `sign` is -1 for the bottom side, whose x the camera sees mirrored. The angles of parts are as it sees them.
    """

    sign: float

    def point(self, x: float, y: float) -> Point:
        return Point(self.sign * x, y)

    def in_unit(self, unit: UnitSpec, x: float, y: float) -> Point:
        """Return a point of a unit's frame, turned and moved with the unit."""
        turn = radians(unit.rotation)
        return self.point(unit.at[0] + x * cos(turn) - y * sin(turn), unit.at[1] + x * sin(turn) + y * cos(turn))

    def angle(self, unit: UnitSpec, rotation_deg: float) -> float:
        """Return the angle of a part on a unit, which turns as x and y do."""
        return (rotation_deg + self.sign * unit.rotation) % 360.0


def _site(recipe: BoardRecipe, frame: _BoardFrame, part: BoardPart, name: str, unit: UnitSpec) -> Site:
    form = recipe.components[part.component]
    angle = (frame.angle(unit, part.rotation_deg) + form.turn) % 360.0
    at = frame.in_unit(unit, part.x_mm, part.y_mm)
    return Site(name, part.refdes, part.component, at, angle, _shape(recipe, part.component, form))


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
