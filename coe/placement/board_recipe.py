"""A board recipe: how a camera sees a whole board, in a YAML file whose keys are all checked, with file and line.

The recipe says what `parts.csv` does not: which side the camera sees and at which scale, the outline and the
fiducials, how large the crop of each component is, and how a panel is divided. Lengths are mm in the frame of
`parts.csv`, angles degrees counterclockwise. docs/placements.md explains it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations
from math import dist
from pathlib import Path

from coe.helpers import strict_yaml
from coe.helpers.strict_model import of_yaml
from coe.helpers.strict_yaml import KeyPath, YamlDocument
from coe.placement.fit import are_in_line
from coe.placement.recipe_spec import Position, RecipeSpec, UnitSpec

_NEEDS = "recipe, side, um_per_pixel, outline, fiducials (or held) and components"


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
            "write either `fiducials`, by which each board is found, or `held: true`, if a fixture holds each board in "
            "one place",
        )
    _check_fiducials(document, form)
    if form.bad_mark is not None and form.panel is not None and form.panel.refdes is not None:
        raise document.error(("bad_mark",), "a bad mark needs a panel with units or an array; leave it out")
    if form.serial is not None and form.serial.each == "unit" and (form.panel is None or form.panel.refdes is not None):
        raise document.error(
            ("serial", "each"), "a code on each unit needs a panel with units or an array; leave it out"
        )
    if form.bad_mark is not None and form.panel is None:
        raise document.error(
            ("bad_mark",), "a bad mark shows which unit of a panel to skip, but there is no panel; leave it out"
        )
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
                    place,
                    f"the fiducials '{one}' and '{other}' have the same place; give each its own, in mm (are the units "
                    "right?)",
                )
        if len(places) > 2 and all(map(are_in_line, combinations(places.values(), 3))):
            raise document.error(
                place, "the fiducials are on one line, which does not fix the other direction; choose others"
            )
        _check_size(document, form, ("fiducials", "diameter"), "a fiducial", fiducials.diameter)
    if form.landmark is not None:
        _check_size(document, form, ("landmark", "diameter"), "the landmark", form.landmark.diameter)


def _check_size(document: YamlDocument, form: RecipeSpec, place: KeyPath, what: str, diameter: float) -> None:
    pixels = diameter * 1000 / form.um_per_pixel
    if pixels < 6:
        raise document.error(place, f"{what} would have {pixels:.1f} pixels; it needs 6 to be found exactly")
