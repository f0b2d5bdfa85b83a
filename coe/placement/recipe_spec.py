"""The keys of a board recipe, each with what it means and what it may be.

Lengths are mm in the frame of `parts.csv`, angles degrees counterclockwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from coe import config
from coe.board.parts_list import FARTHEST_MM, Side
from coe.helpers.strict_model import Name, Share, StrictModel
from coe.placement.serial_code import SerialSpec


def _rising(extent: tuple[float, float]) -> tuple[float, float]:
    if extent[0] >= extent[1]:
        raise ValueError(f"it goes from {extent[0]:g} to {extent[1]:g}; write the smaller number first")
    return extent


Coordinate = Annotated[float, Field(ge=-FARTHEST_MM, le=FARTHEST_MM, allow_inf_nan=False)]
Length = Annotated[float, Field(gt=0, le=FARTHEST_MM, allow_inf_nan=False)]
Degrees = Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)]
Position = tuple[Coordinate, Coordinate]
Extent = Annotated[Position, AfterValidator(_rising)]
Slant = Annotated[float, Field(ge=-0.3, le=0.3, allow_inf_nan=False)]
Look = Literal["bright", "dark"]
Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right"]
MOST_UNITS = 1000


class OutlineSpec(StrictModel):
    """The rectangle around a board, or a panel: its extent in x and in y."""

    x: Extent
    y: Extent

    def holds(self, at: Position) -> bool:
        """Tell whether a point lies in it."""
        return all(low <= value <= high for value, (low, high) in zip(at, (self.x, self.y), strict=True))


class FiducialsSpec(StrictModel):
    """The fiducials: discs of one diameter, `bright` or `dark` against a ring around them, by name.

    They are searched up to `search` mm from where they lie if the board is in the middle of the picture.
    """

    at: Annotated[dict[Name, Position], Field(min_length=2, max_length=20)]
    diameter: Length
    look: Look = "bright"
    search: Length = 5.0


class CameraSpec(StrictModel):
    """How the camera sees a board that lies well: `coe-board new` measures it.

    The board lies turned by `turn` degrees, counterclockwise; the middle of the outline is at `middle` of the picture,
    in shares of its width and height. Half a picture (of its longer side) to the right of it, and below it, all is
    smaller by `keystone`, as shares: the camera looks aslant.
    """

    turn: Degrees = 0.0
    middle: tuple[Share, Share] = (0.5, 0.5)
    keystone: tuple[Slant, Slant] = (0.0, 0.0)


class PackageSpec(StrictModel):
    """A component type: the size of its package, the margin around it in the crop, and how the crop lies.

    `crop` is the longer side of the crop in pixels; without it a crop has the scale of the picture. `turn` turns the
    part further before it is upright, if the CAD library's zero is not that of the expert's pictures. `pin1` is the
    corner of the upright crop that the overlay marks.
    """

    size: tuple[Length, Length]
    margin: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.25
    crop: Annotated[int, Field(ge=config.MIN_IMAGE_SIDE, le=4096)] | None = None
    turn: Degrees = 0.0
    pin1: Corner = "top-left"


class UnitSpec(StrictModel):
    """A board on a panel: where the origin of the placement file lies on the panel, and how far the board is turned."""

    at: Position
    rotation: Degrees = 0.0


class ArraySpec(StrictModel):
    """Boards on a panel in rows (y) and columns (x); the first, r1c1, has its origin at `first`."""

    rows: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    columns: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    pitch: Position
    first: Position = (0.0, 0.0)

    @model_validator(mode="after")
    def _is_not_too_many(self) -> ArraySpec:
        if self.rows * self.columns > MOST_UNITS:
            raise ValueError(f"{self.rows * self.columns} units are more than {MOST_UNITS}")
        return self


class PanelSpec(StrictModel):
    """The boards on a panel: `units` by name, an `array` of them, or told by the `refdes` of the panel's own file.

    `refdes` is how parts are named there: `Board_{n}-{orig}`, or `{orig}` where each stands once for each board.
    """

    units: Annotated[dict[Name, UnitSpec], Field(min_length=1, max_length=MOST_UNITS)] | None = None
    array: ArraySpec | None = None
    refdes: Annotated[str, Field(pattern=r"^([^{}]*\{n\}[^{}]*)?\{orig\}$")] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> PanelSpec:
        if [self.units, self.array, self.refdes].count(None) != 2:
            raise ValueError("a panel has either units, an array or refdes; write one of them")
        return self


class BadMarkSpec(StrictModel):
    """Where each unit of a panel has its bad mark, in the unit's frame, and how a marked unit looks there.

    The unit is bad if the disc is on average `bright`, at least `level` of 255, or `dark`, at most `level`.
    """

    at: Position
    diameter: Length
    look: Look
    level: Annotated[int, Field(ge=1, le=254)] = 128


class LandmarkSpec(StrictModel):
    """A disc that must be there: it lies elsewhere if the board lies turned or mirrored, where fiducials may lie alike.

    At each place that it would have then, nothing may look like it.
    """

    at: Position
    diameter: Length
    look: Look


class RecipeSpec(StrictModel):
    """The keys of a recipe. A board that is `held` by a fixture lies where the camera says, and has no fiducials.

    Then its place follows from the width and height in pixels of each `picture`; None for any.
    """

    recipe: Name
    side: Side
    um_per_pixel: Annotated[float, Field(gt=0.01, le=10_000, allow_inf_nan=False)]
    outline: OutlineSpec
    fiducials: FiducialsSpec | None = None
    held: bool = False
    picture: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    tolerance_um: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] = 100.0
    most_turn: Annotated[float, Field(gt=0, le=30, allow_inf_nan=False)] = 5.0
    most_stretch: Annotated[float, Field(gt=0, le=0.2, allow_inf_nan=False)] = 0.02
    camera: CameraSpec = CameraSpec()
    components: Annotated[dict[Name, PackageSpec], Field(min_length=1)]
    panel: PanelSpec | None = None
    bad_mark: BadMarkSpec | None = None
    landmark: LandmarkSpec | None = None
    serial: SerialSpec | None = None
