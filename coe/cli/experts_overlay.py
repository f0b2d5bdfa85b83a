"""`coe-experts overlay`: the picture that a person confirms before a board recipe is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from PIL import Image

from coe.board import rules
from coe.cli.common import Exit, out
from coe.cli.options import takes
from coe.cli.placing import layout_of, notes
from coe.errors import ConfigError
from coe.files import replacing, writing
from coe.pictures.finding import printable

if TYPE_CHECKING:
    from coe.placement.board_layout import Layout


@takes("layout", layout_of)
def overlay(
    picture: Annotated[Path, typer.Argument(help="A picture of a whole board.")],
    board: Annotated[str, typer.Option(help="Board: a name or a YAML file of routing rules.")],
    *,
    layout: Layout | None,
    to: Annotated[Path, typer.Option("--out", help="The picture to write, a .png.")] = Path("overlay.png"),
    side: Annotated[
        int, typer.Option(min=200, max=20_000, help="The longer side of the picture in pixels; it is never enlarged.")
    ] = 1600,
) -> None:
    """Draw what will be cut out of a board: crops, reference designators, first pins, and the fiducials found.

    Look at it before you inspect: each outline must lie on its part, and each dot at the corner of its first pin. Exit
    status 1 if the board is not registered, or a crop lies partly outside of the picture; 3 if it cannot be read.

    Example: coe-experts overlay b.png --board demo --placements p.csv --dialect kicad --units mm --recipe r.yaml
    """
    loaded = rules.load(board)
    if layout is None:
        raise ConfigError("give --placements, --dialect, --units and --recipe")
    if to.suffix.lower() != ".png":
        raise ConfigError(f"--out {to} is not a .png")
    layout.check(loaded.components, loaded.board)

    from coe.placement.board_pictures import read_board
    from coe.placement.overlay_picture import overlay_of

    read = read_board(picture, layout, printable(picture.stem), name=picture.name, bits=loaded.bits)
    drawn = Image.fromarray(overlay_of(read, side, "RGB"))
    with writing(to), replacing(to) as file:
        drawn.save(file, "PNG")
    location = read.location
    assert location is not None
    for note in notes(layout):
        out.print(note)
    for unit, why in location.skipped.items():
        out.print(f"unit {unit} is skipped: {why}")
    if location.fit is None:
        out.print(f"not registered: {location.why}; see {to}")
        raise typer.Exit(Exit.NOT_GOOD)
    refused = [result for result in read.results() if result.verdict is not None]
    for result in refused:
        out.print(f"{result.request.refdes}: {result.findings[0].doubt}")
    residual = "held" if location.residual_um is None else f"residual {location.residual_um:.1f} um"
    out.print(
        f"{len(layout.sites)} components, {residual}, {location.fit.um_per_pixel:.4f} um a "
        f"pixel, turned by {location.fit.turn_deg:.2f} degrees; look at {to}"
    )
    raise typer.Exit(Exit.NOT_GOOD if refused else Exit.OK)
