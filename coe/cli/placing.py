"""The options that say what a board shows: a placement file with a recipe, a parts list, or the counts of the rules."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coe.board import parts_list as parts_lists
from coe.board.completeness import Expected
from coe.board.parts_list import PlacedPart
from coe.cli.common import err
from coe.cli.options import Options, option
from coe.errors import ConfigError, list_few
from coe.pictures.found_image import FoundImage

if TYPE_CHECKING:
    from coe.board.rules import Rules
    from coe.inspector.line_options import LineOptions
    from coe.placement.board_layout import Bottom, Layout
    from coe.placement.bom_join import BomPart
    from coe.placement.placement_file import FileForm, Placement, PlacementFile


class ReadAs(Options):
    """How a placement file is read."""

    dialect: str | None = option(
        "What wrote the placement file: kicad, altium, easyeda, eagle, ... or package.module:NAME. Default: any "
        "table with a header."
    )
    units: str | None = option("Unit of the placement file: mm, um, mil or inch. Default: what the file states.")
    yes: bool = option("Take the placement file as it reads, without a question. See --dialect.", False)
    bom: Path | None = option(
        "A bill of materials, with lists of designators: values and packages that the placement file lacks, and "
        "the parts that are not fitted.",
        metavar="FILE",
    )
    bottom_x: str | None = option(
        "top or bottom, for a recipe of the bottom side: the file gives x as seen from the top, through the "
        "board, or as seen from the bottom."
    )
    bottom_angle: str | None = option(
        "top, top-180 or bottom, for a recipe of the bottom side: angles count counterclockwise as seen from the "
        "top, with parts at 0 mirrored left to right (top) or top to bottom (top-180, as KiCad), or as seen from the "
        "bottom."
    )

    def bottom(self) -> Bottom | None:
        """Return how a file describes the bottom side; None if the options do not say; raises ConfigError."""
        if (self.bottom_x is None) != (self.bottom_angle is None):
            raise ConfigError("give --bottom-x and --bottom-angle together, or neither")
        if self.bottom_x is None or self.bottom_angle is None:
            return None
        from coe.placement.board_layout import Bottom

        return Bottom.of(self.bottom_x, self.bottom_angle)


class Placing(ReadAs):
    """Where parts lie in pictures of whole boards."""

    placements: Path | None = option(
        "A placement (pick-and-place) file: the pictures show whole boards, and each part is cut out of them. "
        "Needs --recipe. See docs/placements.md.",
        metavar="FILE",
    )
    recipe: Path | None = option(
        "The board recipe: side, scale, outline, fiducials, and the crop of each component. Look at the picture "
        "that coe-experts overlay makes before you use it.",
        metavar="FILE",
    )

    def layout(self) -> Layout | None:
        """Return the layout that the options describe; None without any of them.

        Raises ConfigError if some are missing, or if a file cannot be used.
        """
        names = ("placements", "recipe", "bom", "dialect", "units", "bottom_x", "bottom_angle")
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if not given:
            return None
        if self.placements is None or self.recipe is None:
            missing = [name for name in ("--placements", "--recipe") if name not in given]
            raise ConfigError(f"{given[0]} needs {', '.join(missing)} too")
        described = self.bottom()
        from coe.placement.board_layout import lay_out
        from coe.placement.board_recipe import read_recipe

        checked = read_recipe(self.recipe)
        form = checked.placement_file
        said = bom_of(self.bom, self.dialect, form)
        file = read_confirmed(self.placements, self.dialect, self.units, form, said, yes=self.yes)
        return lay_out(checked, fitted(file, self.placements, said, self.bom)[0], described)


def bom_of(path: Path | None, dialect: str | None, form: FileForm) -> Mapping[str, BomPart] | None:
    """Return a BOM; None without one."""
    from coe.placement.cad_files import read_bom

    return None if path is None else read_bom(path, dialect or "generic", form, asks=False)


def fitted(
    file: PlacementFile, of_file: Path, bom: Mapping[str, BomPart] | None, of_bom: Path | None
) -> tuple[Sequence[Placement], list[str]]:
    """Return the parts of a placement file that are fitted, with the words of a BOM, and the names of the others.

    Says these names, and which parts stand in one of the two files alone.
    """
    told: list[tuple[str, Sequence[str]]] = [(f"not fitted, as {of_file.name} says", file.not_placed)]
    placements, not_fitted = file.placements, [*file.not_placed]
    if bom is not None and of_bom is not None:
        from coe.placement.bom_join import join

        joined = join(placements, bom, said=file.said, not_placed=file.not_placed)
        for note in joined.notes:
            err.print(f"{of_bom.name}: {note}")
        told += [
            (f"not fitted, as {of_bom.name} says", joined.not_fitted),
            ("only in the placement file", joined.only_placed),
            (f"only in {of_bom.name}", joined.only_listed),
        ]
        placements, not_fitted = joined.placements, [*not_fitted, *joined.not_fitted]
    _say(told)
    return placements, not_fitted


def _say(told: Sequence[tuple[str, Sequence[str]]]) -> None:
    for what, refdes in told:
        if refdes:
            err.print(f"{what}: {list_few(refdes, 20)}")


def read_confirmed(
    path: Path,
    dialect: str | None,
    units: str | None,
    form: FileForm,
    bom: Mapping[str, BomPart] | None,
    *,
    yes: bool,
    in_pixels: bool = False,
) -> PlacementFile:
    """Read a placement file, say its notes, and ask how it reads unless its dialect and unit are given; ConfigError."""
    from coe.placement.cad_files import read_file

    file = read_file(path, dialect or "generic", "mm" if in_pixels else units or "", form, bom)
    for note in file.notes:
        err.print(f"{path.name}: {note}")
    if dialect is None or units is None:
        _confirm(path, file, form, bom, yes=yes, in_pixels=in_pixels)
    return file


def _confirm(
    path: Path,
    file: PlacementFile,
    form: FileForm,
    bom: Mapping[str, BomPart] | None,
    *,
    yes: bool,
    in_pixels: bool = False,
) -> None:
    """Say how a placement file and a BOM read, and ask whether that is right; raises ConfigError unless it is."""
    from coe.placement.bom_join import Bom

    x, y = ([getattr(place, axis) for place in file.placements] for axis in ("x_mm", "y_mm"))
    sides = Counter(place.side for place in file.placements)
    columns = ", ".join(f"{field} is '{name}'" for field, name in file.columns.items())
    if "rotation" not in file.columns:
        columns += f", rotation is {form.rotation:g} degrees for all"
    if "side" not in file.columns:
        told = (
            "as the name of the file, or an M before an angle, tells" if form.side is None else f"{form.side} for all"
        )
        columns += f", side is {told}"
    unit, up = ("pixels", -1) if in_pixels else ("mm", 1)
    y = sorted(up * value for value in y)
    err.print(
        f"{path.name}: {len(x)} parts ({', '.join(f'{count} {side}' for side, count in sides.items())}) in "
        f"{unit if in_pixels else file.stated or file.units}, "
        f"x {min(x):g} to {max(x):g} {unit}, y {y[0]:g} to {y[-1]:g} {unit}; {columns}"
        + (f"; not read: {', '.join(file.unused)}" if file.unused else "")
    )
    if isinstance(bom, Bom) and bom.read_as:
        err.print(bom.read_as)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"is this how {path.name} is meant? Then give --yes, or --dialect generic --units {file.units}; else name "
            "its dialect and unit"
        )
    if not typer.confirm("Is that right?", err=True):
        raise ConfigError(f"{path.name}: name its dialect and its unit (--dialect, --units), or correct the file")


def notes(layout: Layout) -> list[str]:
    """Return what a person should know of a layout: parts that are left out, and ways to lie wrong unnoticed."""
    left_out = [f"not inspected, as the recipe says: {', '.join(layout.not_inspected)}"] if layout.not_inspected else []
    return [*left_out, *warnings_of(layout)]


def warnings_of(layout: Layout | None) -> tuple[str, ...]:
    """Return in which ways whole boards could be cut wrong unnoticed; none without whole boards."""
    if layout is None:
        return ()
    from coe.placement.wrong_ways import warnings_of as of_layout

    return of_layout(layout)


def expected_of(board: Rules, layout: Layout | None, parts: Path | None, expect: str | None) -> Expected | None:
    """Return what the options ask of each board; None if they ask nothing. Raises ConfigError."""
    if layout is not None and (parts is not None or expect is not None):
        raise ConfigError("--placements is a parts list too; leave --parts and --expect out")
    if parts is not None and expect is not None:
        raise ConfigError("--parts and --expect ask the same in two ways; give one of them")
    if layout is not None:
        return Expected.of_parts(layout.parts, "placements")
    if expect is not None:
        if expect != "counts":
            raise ConfigError(f"--expect '{expect}' is not known; give counts, or a parts list with --parts")
        return Expected.of_counts(board.components, str(board.path))
    if parts is None:
        return None
    listed = parts_lists.read(parts)
    for note in listed.notes:
        err.print(f"{parts.name}: {note}")
    _say([(f"not fitted, as {parts.name} says", listed.not_fitted)])
    expected = Expected.of_parts(listed)
    parts_lists.check(expected.parts, board.components, board.board)
    return expected


def refuse_unanswerable(expected: Expected | None, items: Sequence[FoundImage]) -> None:
    """Raise ConfigError if counts are asked for, and no image says of which board it is."""
    if expected is not None and expected.by == "counts" and not any(item.serial or item.refdes for item in items):
        raise ConfigError(
            "--expect counts: no image has a serial or a reference designator, so there are no boards to count; name "
            "images <serial>/<refdes>__<component>.<ext>, or list them in a table"
        )


def foreseen(expected: Expected | None, options: LineOptions) -> tuple[PlacedPart, ...]:
    """Return the parts list for a line; none for a strategy that does not look ahead, or for whole boards on a
    cluster."""
    if expected is None or not options.strategy.foresees:
        return ()
    return () if options.cluster is not None and expected.by == "placements" else expected.parts
