"""What each board must show, by the options: a parts list, a placement file, or the counts of the rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe.board import parts_list as parts_lists
from coe.board.completeness import Expected
from coe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coe.board.parts_list import PlacedPart
    from coe.board.rules import Rules
    from coe.inspector.line_options import LineOptions
    from coe.pictures.found_image import FoundImage
    from coe.placement import Layout

PartsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The board's parts list in the order of the camera, with columns such as refdes and component; a "
        "pick-and-place file will do. A board without a picture of each part is REVIEW, and experts are loaded before "
        "their images come.",
    ),
]
ExpectOption = Annotated[
    str | None,
    typer.Option(
        metavar="counts",
        help="counts: a board without a picture of as many places of each component as its rules count is REVIEW.",
    ),
]


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
    expected = Expected.of_parts(parts)
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
