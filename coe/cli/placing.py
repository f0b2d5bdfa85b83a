"""The options of whole boards: a placement file, how to read it, and a board recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe.errors import ConfigError

if TYPE_CHECKING:
    from coe.placement import Layout

_NAMES = "kicad, altium, easyeda, eagle, generic, or package.module:NAME"
PlacementsOption = Annotated[
    Path | None,
    typer.Option(
        "--placements",
        metavar="FILE",
        help="A placement (pick-and-place) file: the pictures show whole boards, and each part is cut out of them. "
        "Needs --dialect, --units and --recipe. See docs/placements.md.",
    ),
]
DialectOption = Annotated[
    str | None, typer.Option("--dialect", help=f"What wrote the placement file: {_NAMES}. It is never guessed.")
]
UnitsOption = Annotated[str | None, typer.Option("--units", help="The unit of the placement file: mm, mil or inch.")]
RecipeOption = Annotated[
    Path | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="The board recipe: side, scale, outline, fiducials, and the crop of each component. Look at the picture "
        "that coe-experts overlay makes before you use it.",
    ),
]
BottomXOption = Annotated[
    str | None,
    typer.Option(
        "--bottom-x",
        help="top or bottom, for a recipe of the bottom side: the file gives x as seen from the top, through the "
        "board, or as seen from the bottom.",
    ),
]
BottomAngleOption = Annotated[
    str | None,
    typer.Option(
        "--bottom-angle",
        help="top, top-180 or bottom, for a recipe of the bottom side: angles count counterclockwise as seen from the "
        "top, with parts at 0 mirrored left to right (top) or top to bottom (top-180, as KiCad), or as seen from the "
        "bottom.",
    ),
]


def layout_of(
    placements: Path | None,
    dialect: str | None,
    units: str | None,
    recipe: Path | None,
    bottom_x: str | None,
    bottom_angle: str | None,
) -> Layout | None:
    """Return the layout that the options describe; None without any of them.

    Raises ConfigError if some are missing, or if a file cannot be used.
    """
    needed = {"--placements": placements, "--dialect": dialect, "--units": units, "--recipe": recipe}
    bottom = {"--bottom-x": bottom_x, "--bottom-angle": bottom_angle}
    given = [name for name, value in {**needed, **bottom}.items() if value is not None]
    if not given:
        return None
    if missing := [name for name, value in needed.items() if value is None]:
        raise ConfigError(f"{given[0]} needs {', '.join(missing)} too")
    if (bottom_x is None) != (bottom_angle is None):
        raise ConfigError("give --bottom-x and --bottom-angle together, or neither")
    from coe.placement import Bottom, lay_out, read_placements, read_recipe

    assert placements is not None
    assert recipe is not None
    described = Bottom.of(bottom_x, bottom_angle) if bottom_x is not None and bottom_angle is not None else None
    return lay_out(read_recipe(recipe), read_placements(placements, str(dialect), str(units)), described)


def notes(layout: Layout) -> list[str]:
    """Return what a person should know of a layout: parts that are left out, and ways to lie wrong unnoticed."""
    left_out = [f"not inspected, as the recipe says: {', '.join(layout.not_inspected)}"] if layout.not_inspected else []
    return [*left_out, *warnings_of(layout)]


def warnings_of(layout: Layout | None) -> tuple[str, ...]:
    """Return in which ways whole boards could be cut wrong unnoticed; none without whole boards."""
    if layout is None:
        return ()
    from coe.placement import warnings_of as of_layout

    return of_layout(layout)
