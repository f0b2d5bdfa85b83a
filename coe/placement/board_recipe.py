"""A board recipe: how a camera sees a whole board, in a YAML file whose keys are all checked, with file and line.

The recipe says what a placement file cannot: which side the camera sees and at which scale, the outline and the
fiducials, how large the crop of each component is, which package is which component, and how a panel is divided.
Lengths are mm in the frame of the placement file, angles degrees counterclockwise. docs/placements.md explains it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import combinations
from math import dist
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from coe import config, strict_yaml
from coe.placement.dialects import Side
from coe.placement.file_form import FileForm
from coe.placement.placements import FARTHEST_MM
from coe.placement.serial_code import SerialSpec
from coe.spelling import look
from coe.strict_model import Name, Share, StrictModel, of_yaml
from coe.strict_yaml import KeyPath, YamlDocument


def _rising(extent: tuple[float, float]) -> tuple[float, float]:
    if extent[0] >= extent[1]:
        raise ValueError(f"it goes from {extent[0]:g} to {extent[1]:g}; write the lesser first")
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
_NEEDS = "recipe, side, um_per_pixel, outline, fiducials (or held) and components"


def fits(word: str, of_part: str) -> bool:
    """Tell whether a word of a recipe, in which `*` stands for any signs, means a word of a part."""
    if look(word) == look(of_part):
        return True
    pattern = ".*".join(re.escape(piece) for piece in look(word).split("*"))
    return "*" in word and re.fullmatch(pattern, look(of_part)) is not None


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


class MappingSpec(StrictModel):
    """Placements with this package, value and reference designator are of this component type.

    Each may be left out, but not all. A `*` stands for any signs, as in `R_0402*`.
    """

    component: Name
    package: str | None = None
    value: str | None = None
    refdes: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> MappingSpec:
        if self.words == (None, None, None):
            raise ValueError("an entry of placed_as names a package, a value, a refdes, or several of them")
        return self

    def fits(self, package: str, value: str, refdes: str) -> bool:
        """Tell whether a placement is meant, whichever signs of one look its words are written with."""
        parts = zip(self.words, (package, value, refdes), strict=True)
        return all(word is None or fits(word, of_part) for word, of_part in parts)

    @property
    def words(self) -> tuple[str | None, str | None, str | None]:
        """The package, the value and the reference designator as they are written."""
        return self.package, self.value, self.refdes


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
    """The keys of a recipe. A board that is `held` by a fixture lies where the camera says, and has no fiducials."""

    recipe: Name
    side: Side
    um_per_pixel: Annotated[float, Field(gt=0.01, le=10_000, allow_inf_nan=False)]
    outline: OutlineSpec
    fiducials: FiducialsSpec | None = None
    held: bool = False
    tolerance_um: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] = 100.0
    most_turn: Annotated[float, Field(gt=0, le=30, allow_inf_nan=False)] = 5.0
    most_stretch: Annotated[float, Field(gt=0, le=0.2, allow_inf_nan=False)] = 0.02
    camera: CameraSpec = CameraSpec()
    placement_file: FileForm = FileForm()
    components: Annotated[dict[Name, PackageSpec], Field(min_length=1)]
    placed_as: tuple[MappingSpec, ...] = ()
    not_inspected: tuple[str, ...] = ()
    panel: PanelSpec | None = None
    bad_mark: BadMarkSpec | None = None
    landmark: LandmarkSpec | None = None
    serial: SerialSpec | None = None


class BoardRecipe(RecipeSpec):
    """A board recipe that was checked. `digest` is the SHA-256 of its file, `path` where it was read."""

    path: Path
    digest: str

    @property
    def units(self) -> Mapping[str, UnitSpec]:
        """The units of the panel by name; a single board, or a panel with its own file, is one without a name."""
        if self.panel is None or self.panel.refdes is not None:
            return {"": UnitSpec(at=(0.0, 0.0))}
        if self.panel.units is not None:
            return self.panel.units
        assert self.panel.array is not None
        array = self.panel.array
        return {
            f"r{row + 1}c{column + 1}": UnitSpec(
                at=(array.first[0] + column * array.pitch[0], array.first[1] + row * array.pitch[1])
            )
            for row in range(array.rows)
            for column in range(array.columns)
        }


def read_recipe(path: Path) -> BoardRecipe:
    """Read a recipe; raises RulesError with file and line if it cannot be used."""
    return parse_recipe(path, strict_yaml.content(path, "board recipe"))


def parse_recipe(path: Path, raw: bytes) -> BoardRecipe:
    """Return the recipe that a file's bytes are; raises RulesError, as `read_recipe` does, which names `path`."""
    document = strict_yaml.parse(path, raw, _NEEDS)
    form = of_yaml(document, RecipeSpec)
    if (form.fiducials is None) != form.held:
        raise document.error(
            (),
            "write `fiducials`, by which each board is found, or `held: true` where a fixture holds each board in one "
            "place, and not both",
        )
    _check_fiducials(document, form)
    _check_names(document, form)
    if form.bad_mark is not None and form.panel is not None and form.panel.refdes is not None:
        raise document.error(("bad_mark",), "a bad mark needs a panel with units or an array, whose boards have places")
    if form.serial is not None and form.serial.each == "unit" and (form.panel is None or form.panel.refdes is not None):
        raise document.error(
            ("serial", "each"), "a code on each unit needs a panel with units or an array; leave it out"
        )
    if form.bad_mark is not None and form.panel is None:
        raise document.error(("bad_mark",), "a bad mark tells which unit of a panel to skip; there is no panel here")
    return BoardRecipe(**dict(form), path=path, digest=hashlib.sha256(raw).hexdigest())


def _check_fiducials(document: YamlDocument, form: RecipeSpec) -> None:
    fiducials, place = form.fiducials, ("fiducials", "at")
    places = {} if fiducials is None else fiducials.at
    discs: dict[KeyPath, tuple[str, Position]] = {
        (*place, name): (f"fiducial '{name}'", at) for name, at in places.items()
    }
    if form.landmark is not None:
        discs["landmark", "at"] = ("the landmark", form.landmark.at)
    for where, (what, at) in discs.items():
        if not form.outline.holds(at):
            raise document.error(where, f"{what} at ({at[0]:g}, {at[1]:g}) lies outside of the outline")
    if fiducials is not None:
        for (one, here), (other, there) in combinations(places.items(), 2):
            if dist(here, there) < 2 * fiducials.diameter:
                raise document.error(
                    place, f"the fiducials '{one}' and '{other}' lie on each other; give each its place"
                )
        if len(places) > 2 and _are_in_line(list(places.values())):
            raise document.error(place, "the fiducials lie in one line, which says nothing across it; choose others")
        _check_size(document, form, ("fiducials", "diameter"), "a fiducial", fiducials.diameter)
    if form.landmark is not None:
        _check_size(document, form, ("landmark", "diameter"), "the landmark", form.landmark.diameter)


def _check_size(document: YamlDocument, form: RecipeSpec, place: KeyPath, what: str, diameter: float) -> None:
    pixels = diameter * 1000 / form.um_per_pixel
    if pixels < 6:
        raise document.error(place, f"{what} would have {pixels:.1f} pixels; it needs 6 to be found exactly")


def _are_in_line(points: list[tuple[float, float]]) -> bool:
    """Tell whether no three points make a triangle that is at least a tenth as high as it is long."""
    for a, b, c in combinations(points, 3):
        double_area = abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]))
        if double_area >= 0.1 * max(dist(a, b), dist(b, c), dist(a, c)) ** 2:
            return False
    return True


def _check_names(document: YamlDocument, form: RecipeSpec) -> None:
    looks: dict[tuple[str | None, ...], MappingSpec] = {}
    for index, entry in enumerate(form.placed_as):
        place = ("placed_as", index)
        if entry.component not in form.components:
            raise document.error(place, f"'{entry.component}' is not among the components of the recipe")
        before = looks.setdefault(tuple(word and look(word) for word in entry.words), entry)
        if before.words != entry.words and before.component != entry.component:
            raise document.error(
                place,
                f"{before.words!a} ({before.component}) and {entry.words!a} ({entry.component}) look the same; take "
                "one of the two entries out",
            )
