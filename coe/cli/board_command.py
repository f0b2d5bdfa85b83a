"""`coe-board`: a first board, from photographs or from a placement file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import typer

from coe import config
from coe.board.rules import load
from coe.cli import first_board
from coe.cli.board_placed import Placed
from coe.cli.common import Exit, application, out, run
from coe.cli.experts_options import PolarityOption
from coe.cli.experts_verified import tell_gaps
from coe.cli.first_board import FirstBoard
from coe.cli.options import add, argument, option
from coe.errors import ConfigError, list_few
from coe.helpers.strict_model import name_fault
from coe.pictures import photographs
from coe.pictures.label_folders import GOOD, letters
from coe.store.store_reader import StoreReader

_LEAST = 6
"""With fewer pictures of a label there is hardly one each to learn from, to verify with and to test on."""


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


class New(Placed):
    """Make a first board, in commented files that a person edits; files that are there are never replaced.

    It ends with what a person must decide (TODO in the files), and with the next commands. With --run it ends with
    what still passes by the exams of the experts, and the command that mends it; exit status 1 if something is left to
    decide.

    Example: coe-board new line7 --photos photos --run
    """

    name: str = argument("Name of the board: letters, digits and ._+-, as line7.", ...)
    photos: Path | None = option("Photographs of components: <component>/<label>/<image>.", metavar="FOLDER")
    polarity: PolarityOption = None
    to: Path = option("Folder for what is written. Files there are never replaced.", Path("."), metavar="FOLDER")
    run_next: bool = option("Run the next commands, too, if nothing is left to decide.", False, "--run")

    def run(self) -> Exit:
        first_board.check_name(self.name)
        rules = self.to / config.RULES_FOLDER / f"{self.name}.yaml"
        first_board.refuse_present({rules: None})
        if (self.photos is None) == (self.placements is None):
            raise ConfigError(
                "give what the board is made from: --photos, a folder of photographs, or --placements, a placement file"
            )
        if self.placements is not None:
            made = self.placed(self.placements, self.name, self.to)
        elif self.photos is not None:
            made = self._photographed(self.photos, rules)
        first_board.write(made)
        if not self.run_next:
            return Exit.OK
        if made.open_lines:
            out.print(f"not run: {len(made.open_lines)} lines still need a decision")
            return Exit.NOT_GOOD
        status = first_board.run_commands(made)
        if rules.is_file() and tell_gaps(load(rules), StoreReader(None)) and made.learn:
            out.print(f"mended by pictures of such parts in {made.photographs}/<component>/<label>, and then:")
            out.print(f"  {shlex.join(made.learn)}")
        raise typer.Exit(status)

    def _photographed(self, photos: Path, rules: Path) -> FirstBoard:
        shown = look(photos)
        for folder in (rules.parent, self.to / self.name):
            folder.mkdir(parents=True, exist_ok=True)
        board, images, folder = str(rules), str(photos), self.to / self.name
        said = () if self.polarity is None else ("--polarity", self.polarity)
        choose = ("coe-experts", "choose", board, "--images", images, "--no-prepare", *said)
        commands = (
            ("coe-experts", "split", images),
            choose,
            ("coe-experts", "evaluate", board, "--images", images, "--report", str(folder / "evaluation.html")),
            ("coe-inspect", "--board", board, "--images", images, "--out", str(folder / "run")),
        )
        return FirstBoard({}, tuple(notes(shown)), commands, images, choose)


app = application(
    "Make a first board from what is there: photographs, or a placement file and pictures of whole boards.",
    is_group=True,
)
add(app, New)
main = partial(run, app)
