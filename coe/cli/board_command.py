"""`coe-board`: a first board, from photographs or from a placement file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.board.rules import load
from coe.cli import board_placed, experts_exam, first_board
from coe.cli.common import Exit, application, out, run
from coe.cli.first_board import FirstBoard, MakeBoard
from coe.cli.options import takes
from coe.cli.tool_options import PolarityOption
from coe.errors import ConfigError, list_few
from coe.helpers.strict_model import name_fault
from coe.pictures import photographs
from coe.pictures.label_folders import GOOD, letters
from coe.store.store_reader import StoreReader

_LEAST = 6
"""With fewer pictures of a label there is hardly one each to learn from, to verify with and to test on."""


def photographed(
    photos: Annotated[
        Path | None,
        typer.Option("--photos", metavar="FOLDER", help="Photographs of components: <component>/<label>/<image>."),
    ] = None,
    polarity: PolarityOption = None,
) -> MakeBoard | None:
    """Return what makes a board from photographs; None without any."""
    if photos is None:
        return None

    def make(name: str, to: Path) -> FirstBoard:
        shown = look(photos)
        rules = to / config.RULES_FOLDER / f"{name}.yaml"
        for folder in (rules.parent, to / name):
            folder.mkdir(parents=True, exist_ok=True)
        board, images = str(rules), str(photos)
        said = () if polarity is None else ("--polarity", polarity)
        choose = ("coe-experts", "choose", board, "--images", images, "--no-prepare", *said)
        commands = (
            ("coe-experts", "split", images),
            choose,
            ("coe-experts", "evaluate", board, "--images", images, "--report", str(to / name / "evaluation.html")),
            ("coe-inspect", "--board", board, "--images", images, "--out", str(to / name / "run")),
        )
        return FirstBoard({}, tuple(notes(shown)), commands, images, choose)

    return make


def look(photos: Path) -> dict[str, Counter[str]]:
    """Return how many pictures a folder of photographs shows, by component and folder of a label ("" for none).

    Raises ConfigError for pictures that lie elsewhere, and for a component none of whose folders means good.
    """
    found = photographs.of_components(photos)
    if loose := [one.name for one in found if not one.component or "/" in one.label]:
        raise ConfigError(f"{photos}: {list_few(loose)}: expected {photographs.LAYOUT}")
    photographs.expect_decided(photos, found)
    shown: dict[str, Counter[str]] = {}
    for one in found:
        shown.setdefault(one.component, Counter())[one.label] += 1
    if fault := name_fault(shown):
        raise ConfigError(f"{photos}: folders of components: {fault}")
    if without := [name for name, counts in shown.items() if not any(map(_is_good, counts))]:
        raise ConfigError(f"{photos}: no good parts of {', '.join(without)}; put pictures into {without[0]}/good")
    return shown


def _is_good(label: str) -> bool:
    return not label or letters(label) in GOOD


def notes(shown: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return sentences about what the photographs lack."""
    said = []
    for name, counts in shown.items():
        if few := [f"{number} of {label}" for label, number in counts.items() if label and number < _LEAST]:
            said.append(f"{name}: only {', '.join(few)}: too few to learn, verify and test; give {_LEAST} or more")
        if counts.get("") and len(counts) > 1:
            said.append(f"{name}: {counts['']} pictures in no folder of a label count as good; put them into good")
    return said


app = application(
    "Make a first board from what is there: photographs, or a placement file and pictures of whole boards.",
    is_group=True,
)


@app.command()
@takes("photographed", photographed)
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
