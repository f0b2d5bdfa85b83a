"""The options that say what a board shows: a recipe with `parts.csv`, that alone, or the counts of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board import parts_list as parts_lists
from coe.board.completeness import Expected
from coe.board.parts_list import PlacedPart
from coe.cli.options import Options, option
from coe.errors import ConfigError
from coe.pictures.photographs import Photograph

if TYPE_CHECKING:
    from coe.board.rules import Rules
    from coe.inspector.line_options import LineOptions
    from coe.placement.board_layout import Layout


class Placing(Options):
    """Where parts lie in pictures of whole boards."""

    recipe: Path | None = option(
        "Board recipe, if each picture shows a whole board: side, scale, outline, fiducials and crops. First check "
        "it with coe-experts overlay.",
        metavar="FILE",
    )
    parts: Path | None = option(
        "List of the board's parts, made by coe-board parts. A board that lacks the picture of a part becomes REVIEW. "
        "If rows are in the camera's order, experts load early. Default with --recipe: parts.csv in its folder.",
        metavar="FILE",
    )

    def layout(self) -> Layout | None:
        """Return the layout that the options describe; None without a recipe; raises ConfigError."""
        if self.recipe is None:
            return None
        from coe.placement.board_layout import lay_out
        from coe.placement.board_recipe import read_recipe

        checked, path = read_recipe(self.recipe), self.parts or self.recipe.parent / parts_lists.NAME
        if self.parts is None and not path.exists():
            raise ConfigError(
                f"there is no {path}; make it with coe-board parts FILE --to {path.parent}, or give --parts"
            )
        return lay_out(checked, parts_lists.read_places(path))


def notes(layout: Layout) -> list[str]:
    """Return what a person should know of a layout: parts that are left out, and ways to lie wrong unnoticed."""
    left_out = [f"not inspected, by parts.csv: {', '.join(layout.not_inspected)}"] if layout.not_inspected else []
    return [*left_out, *warnings_of(layout)]


def warnings_of(layout: Layout | None) -> tuple[str, ...]:
    """Return in which ways whole boards could be cut wrong unnoticed; none without whole boards."""
    if layout is None:
        return ()
    from coe.placement.wrong_ways import warnings_of as of_layout

    return of_layout(layout)


def expected_of(board: Rules, layout: Layout | None, parts: Path | None, expect: str | None) -> Expected | None:
    """Return what the options ask of each board; None if they ask nothing. Raises ConfigError."""
    if layout is not None and expect is not None:
        raise ConfigError("--recipe already requires each part; leave --expect out")
    if layout is None and parts is not None and expect is not None:
        raise ConfigError("--parts and --expect both check completeness; give one of them")
    if layout is not None:
        return Expected.of_parts(layout.parts, "placements")
    if expect is not None:
        if expect != "counts":
            raise ConfigError(f"--expect '{expect}' is not known; give counts, or a parts list with --parts")
        return Expected.of_counts(board.components, str(board.path))
    if parts is None:
        return None
    expected = Expected.of_parts(parts)
    parts_lists.check(expected.parts, board.components, board.board)
    return expected


def refuse_unanswerable(expected: Expected | None, items: Sequence[Photograph]) -> None:
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
