"""Which placements are inspected, on which unit of a panel, and as which component."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import dist

from coe.errors import ConfigError, did_you_mean, list_few
from coe.helpers.spelling import fits, look
from coe.placement.board_recipe import BoardRecipe
from coe.placement.panel_split import split
from coe.placement.placement_file import Placement
from coe.placement.recipe_spec import MappingSpec, UnitSpec


def inspected_units(
    recipe: BoardRecipe, places: Sequence[Placement]
) -> list[tuple[str, UnitSpec, list[tuple[Placement, str]]]]:
    """Return each unit's name, where it lies, and what is inspected on it, each part with its component."""
    if recipe.panel is None or recipe.panel.refdes is None:
        inspected = _inspected(recipe, places)
        return [(name, unit, inspected) for name, unit in recipe.units.items()]
    boards = split(places, recipe.panel.refdes)
    lines = {place.line for board in boards.values() for place in board}
    if homeless := [place.refdes for place in places if place.line not in lines]:
        raise ConfigError(
            f"{recipe.path.name}: {list_few(homeless)} {'is' if len(homeless) == 1 else 'are'} of no board of the "
            f"panel, whose parts are named '{recipe.panel.refdes}'; leave them out under not_inspected"
        )
    whole = UnitSpec(at=(0.0, 0.0))  # the file has places on the panel
    return [
        (name, whole, _inspected(recipe, [place for place in board if not is_left_out(recipe, place)]))
        for name, board in boards.items()
    ]


def is_left_out(recipe: BoardRecipe, place: Placement) -> bool:
    """Tell whether a recipe names a placement under not_inspected."""
    return any(fits(word, place.refdes) for word in recipe.not_inspected)


def moved_marks(recipe: BoardRecipe, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the recipe's fiducials that a file names, if it has two or more, and none where the recipe has it."""
    if recipe.fiducials is None or recipe.panel is not None:
        return ()
    at, near = recipe.fiducials.at, recipe.fiducials.diameter
    marks = [place for place in placements if place.refdes in at and place.side is recipe.side]
    marks = [place for place in marks if place.is_fiducial or is_left_out(recipe, place)]
    is_moved = len(marks) > 1 and all(dist((p.x_mm, p.y_mm), at[p.refdes]) > near for p in marks)
    return tuple(marks) if is_moved else ()


def component_of(recipe: BoardRecipe, place: Placement, placed_as: Sequence[MappingSpec] | None = None) -> str | None:
    """Return the component of a placement: by `placed_as`, else by its own column, or by its value; None if by none.

    The first entry of `placed_as` that fits counts, of all that the recipe has or of those that are given. Signs of one
    look are one sign (`coe.helpers.spelling.look`).
    """
    for entry in recipe.placed_as if placed_as is None else placed_as:
        if entry.fits(place.package, place.value, place.refdes):
            return entry.component
    return next((name for name in map(look, (place.component, place.value)) if name in recipe.components), None)


def _inspected(recipe: BoardRecipe, places: Sequence[Placement]) -> list[tuple[Placement, str]]:
    """Return the placements that are inspected, each with its component."""
    # A place without a designator that is no component, such as a fiducial or a logo, is none of them. Raises
    # ConfigError for parts that are no component, all in one sentence, and for a designator that is missing or stands
    # twice.
    # Large boards have thousands of parts, and hundreds of kinds and entries: these are compared once for each kind.
    of_kind = {
        kind: [entry for entry in recipe.placed_as if entry.fits(*kind, entry.refdes or "")]
        for kind in {(place.package, place.value) for place in places}
    }
    found = [(place, component_of(recipe, place, of_kind[place.package, place.value])) for place in places]
    if unmapped := [place for place, component in found if component is None and place.refdes]:
        raise ConfigError(_unmapped(recipe, unmapped))
    inspected = [(place, component) for place, component in found if component is not None]
    if nameless := [place.line for place, _ in inspected if not place.refdes]:
        raise ConfigError(
            f"lines {list_few(map(str, nameless))} of the placement file: a part that {recipe.path.name} inspects "
            "has no reference designator; complete it, or take it out"
        )
    lines: dict[str, list[int]] = {}
    for place, _ in inspected:
        lines.setdefault(place.refdes, []).append(place.line)
    if twice := {refdes: where for refdes, where in lines.items() if len(where) > 1}:
        refdes, where = next(iter(twice.items()))
        raise ConfigError(
            f"'{refdes}' stands in lines {', '.join(map(str, where))} of the placement file"
            + (f", and so do {len(twice) - 1} further parts" if len(twice) > 1 else "")
            + f"; take all but one out, or leave it out under not_inspected of {recipe.path.name}"
        )
    return inspected


def _unmapped(recipe: BoardRecipe, places: Sequence[Placement]) -> str:
    """Return the sentence about parts that are no component, with entries to paste."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for place in places:
        kinds.setdefault((place.package, place.value), []).append(place.refdes)
    first = places[0]
    word = first.component or first.package or first.value
    entries = [
        f"  - {{package: {json.dumps(package, ensure_ascii=False)}, value: {json.dumps(value, ensure_ascii=False)}, "
        f"component: TODO}}  # {len(refdes)}: {list_few(refdes, 4)}"
        for (package, value), refdes in sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    ]
    return (
        f"{recipe.path.name}: {first.refdes} (line {first.line} of the placement file) with package '{first.package}' "
        f"and value '{first.value}' is no component of the recipe{did_you_mean(word, recipe.components)}"
        + (f", and so are {len(places) - 1} further parts" if len(places) > 1 else "")
        + "; leave parts out under not_inspected, or add these to placed_as, each with its component:\n"
        + "\n".join(entries)
    )
