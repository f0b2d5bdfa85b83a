"""`coe-board`: a first board, from what is there."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.board.rules import load
from coe.cli import board_photographed, board_placed, experts_exam, first_board
from coe.cli.common import Exit, application, out, run
from coe.cli.first_board import MakeBoard
from coe.cli.options import takes
from coe.errors import ConfigError
from coe.store.store_reader import StoreReader

app = application(
    "Make a first board from what is there: photographs, or a placement file and pictures of whole boards.",
    is_group=True,
)


@app.command()
@takes("photographed", board_photographed.photographed)
@takes("placed", board_placed.placed)
def new(
    name: Annotated[str, typer.Argument(help="Name of the board: letters, digits and ._+-, as line7.")],
    *,
    photographed: MakeBoard | None,
    placed: MakeBoard | None,
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Folder for what is written. Files there are never replaced.")
    ] = Path("."),
    run_next: Annotated[
        bool, typer.Option("--run", help="Run the next commands, too, if nothing is left to decide.")
    ] = False,
) -> None:
    """Make a first board, in commented files that a person edits; files that are there are never replaced.

    It ends with what a person must decide (TODO in the files), and with the next commands. With --run it ends with
    what still passes by the exams of the experts, and the command that mends it; exit status 1 if something is left to
    decide.

    Example: coe-board new line7 --photos photos --run
    """
    first_board.check_name(name)
    rules = to / config.RULES_FOLDER / f"{name}.yaml"
    first_board.refuse_present({rules: None})
    ways = [make for make in (photographed, placed) if make is not None]
    if len(ways) != 1:
        raise ConfigError(
            "give what the board is made from: --photos, a folder of photographs, or --placements, a placement file"
        )
    made = ways[0](name, to)
    first_board.write(made)
    if not run_next:
        raise typer.Exit(Exit.OK)
    if made.open_lines:
        out.print(f"nothing is run before what is left to decide is decided: {len(made.open_lines)} lines")
        raise typer.Exit(Exit.NOT_GOOD)
    status = first_board.run_commands(made)
    if rules.is_file() and experts_exam.tell_gaps(load(rules), StoreReader(None)) and made.learn:
        out.print(f"mended by pictures of such parts in {made.photographs}/<component>/<label>, and then:")
        out.print(f"  {shlex.join(made.learn)}")
    raise typer.Exit(status)


main = partial(run, app)
