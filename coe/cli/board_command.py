"""`coe-board`: a first board, from photographs or from a placement file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coe import config
from coe.board.drafting import check_name
from coe.board.rules import load
from coe.cli.board_parts import Bringing, Parts, source
from coe.cli.common import Exit, application, err, out, point_out, run
from coe.cli.console import Progress
from coe.cli.experts_options import PolarityOption
from coe.cli.experts_verified import tell_gaps
from coe.cli.options import add, argument, option
from coe.config import counted
from coe.errors import ConfigError, list_few
from coe.helpers.files import replacing, writing
from coe.helpers.strict_model import name_fault
from coe.pictures import finding
from coe.pictures.label_folders import GOOD, letters
from coe.store.store_reader import StoreReader

if TYPE_CHECKING:
    from coe.bring.board.first_board import FirstBoard

_ANSWERS = "answers.yaml"
_OF_PARTS = ("parts.csv", _ANSWERS)
_LEAST = 6
"""With fewer pictures of a label there is hardly one each to learn from, to verify with and to test on."""
_LEAST_GOOD = 10
"""Three fifths of fewer good pictures are too few for a kind that needs five beside those that it judges."""


class Placed(Bringing):
    """The options of a board that is made from a placement file."""

    placements: Path | None = option("Placement (pick-and-place) file, if pictures show whole boards.", metavar="FILE")
    images: Path | None = option("Pictures of whole boards, at any scale and rotation.", metavar="FOLDER")
    outline: Path | None = option(
        "Board outline: Gerber (Edge.Cuts, profile) or .kicad_pcb. Default: from --placements.", metavar="FILE"
    )
    side: str = option("Side that the camera sees: top or bottom.", "top")
    held: bool = option("Boards lie in a fixture: no fiducials are needed.", False)
    in_pixels: bool = option("Places are pixels from the top left corner, y downwards. Implies --held.", False)
    marks: list[str] | None = option(
        "If the board is not found: pixel of a fiducial or part in the first picture, e.g. FID1=812,340. Give two, "
        "or four if the camera is tilted.",
        None,
        "--mark",
        metavar="NAME=X,Y",
    )
    good: bool = option("The boards in the pictures are good: train on them.", False)

    def placed(self, placements: Path, name: str, to: Path) -> FirstBoard:
        """Make a board from a placement file; raises ConfigError."""
        from coe.board.parts_list import Side
        from coe.bring.board.board_outline import drawn_sizes, edge_in, read_outline
        from coe.bring.board.draft_recipe import plan
        from coe.bring.board.first_board import Making, marks_of
        from coe.bring.board.package_sizes import LIBRARY, read_library

        images, side = self.images, self.side
        if side not in set(Side):
            raise ConfigError(f"--side '{side}' is not known; give top or bottom")
        how = self.answered(to / name)
        if self.in_pixels:
            self._refuse_beside_pixels()
            in_pixels = {"unit": "mm", "y": "down", "side": how.side or "top", "rotation": how.rotation or 0.0}
            how = how.with_more(in_pixels)
        converted = self.converted(placements, how, unit="pixels" if self.in_pixels else "mm")
        self.confirm(placements)
        library = read_library(Path(LIBRARY)) if Path(LIBRARY).is_file() else ()
        edge, sizes = (None, {}) if self.outline is None else read_outline(self.outline)
        drawn = {**sizes, **drawn_sizes(placements, converted.file.drawn)}
        planned = plan(converted, Side(side), library, edge, edge_in(placements, converted.file, how), drawn)
        seen = marks_of(dict(map(_named_point, self.marks or ())), planned)
        held, made_of = self.held or self.in_pixels, source(placements, self.bom)
        with Progress(console=err, disable=images is None or self.in_pixels) as bar:
            task = bar.add_task("finding the board", total=None)
            making = Making(name, to, converted, planned, made_of, self.good, held, seen, lambda: bar.advance(task))
            return making.in_pixels(images) if self.in_pixels and images is not None else making.board(images)

    def _refuse_beside_pixels(self) -> None:
        """Raise ConfigError for what means nothing where places are pixels of pictures."""
        if self.images is None:
            raise ConfigError("--in-pixels needs --images, the pictures whose pixels the placement file means")
        given = [name for name, is_given in (("--outline", self.outline), ("--side", self.side != "top")) if is_given]
        if self.units not in {None, "mm"}:
            given.append(f"--units {self.units}")
        if given:
            raise ConfigError(f"--in-pixels says where parts lie in the pictures; leave {', '.join(given)} out")


def _named_point(word: str) -> tuple[str, tuple[float, float]]:
    name, _, at = word.rpartition("=")
    number = r"(-?\d{1,6}(?:\.\d{1,6})?)"
    if (match := re.fullmatch(f"{number},{number}", at)) is None:
        raise ConfigError(f"--mark '{word}' is not NAME=X,Y, e.g. FID1=812,340")
    return name, (float(match[1]), float(match[2]))


class New(Placed):
    """Make a first board: commented files for you to edit. Existing files are not replaced.

    The output ends with open decisions (TODO in the files) and the next commands. With --run, exit status 1 if a
    decision is open.

    Example: coe-board new line7 --photos photos --run
    """

    name: str = argument("Name of letters, digits and ._+-, e.g. line7.", ...)
    photos: Path | None = option("Photographs: <component>/<label>/<image>.", metavar="FOLDER")
    polarity: PolarityOption = None
    to: Path = option("Folder for the new files.", Path("."), metavar="FOLDER")
    run_next: bool = option("Also run the next commands, if no decision is open.", False, "--run")

    def run(self) -> Exit:
        check_name(self.name)
        rules = self.to / config.RULES_FOLDER / f"{self.name}.yaml"
        refuse_present([rules])
        if (self.photos is None) == (self.placements is None):
            raise ConfigError(
                "give the source of the board: --photos, a folder of photographs, or --placements, a placement file"
            )
        if self.placements is not None:
            made = self.placed(self.placements, self.name, self.to)
        elif self.photos is not None:
            made = self._photographed(self.photos, rules)
        write(made)
        if not self.run_next:
            return Exit.OK
        if made.open_lines:
            out.print(f"not run: {counted(len(made.open_lines), 'line needs', 'lines need')} a decision")
            return Exit.NOT_GOOD
        status = run_commands(made)
        if rules.is_file() and tell_gaps(load(rules), StoreReader(None)) and made.learn:
            out.print(f"to fix this, add pictures of such parts to {made.photographs}/<component>/<label>, then run:")
            out.print(f"  {shlex.join(('coe-experts', 'split', made.photographs))}")
            out.print(f"  {shlex.join(made.learn)}")
        raise typer.Exit(status)

    def _photographed(self, photos: Path, rules: Path) -> FirstBoard:
        from coe.bring.board.first_board import FirstBoard

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


def look(photos: Path) -> dict[str, Counter[str]]:
    """Return how many pictures a folder of photographs shows, by component and folder of a label ("" for none).

    Raises ConfigError for pictures that lie elsewhere, and for a component none of whose folders means good.
    """
    found = finding.of_components(photos)
    if loose := [one.name for one in found if not one.component or "/" in one.label]:
        raise ConfigError(f"{photos}: {list_few(loose)}: expected {finding.LAYOUT}")
    finding.expect_decided(photos, found)
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
        least = {label: _LEAST_GOOD if _is_good(label) else _LEAST for label in counts if label}
        for label in (label for label, number in least.items() if counts[label] < number):
            few = f"only {counts[label]} of {label}: too few to train, verify and test"
            said.append(f"{name}: {few}; give {least[label]} or more")
        if counts.get("") and len(counts) > 1:
            said.append(f"{name}: {counts['']} pictures in no folder of a label: treated as good; put them into good")
    return said


def refuse_present(paths: Iterable[Path]) -> None:
    """Raise ConfigError, which names all of them, if files are there that would be replaced."""
    if present := [str(path) for path in paths if path.is_symlink() or path.exists()]:
        raise ConfigError(
            f"{list_few(present)}: is there already, and nothing is replaced; move it away, or give another "
            "NAME or --to"
        )


def write(board: FirstBoard) -> None:
    """Write the files of a new board, and say what they are and what comes next; raises ConfigError for files there.

    Where `coe-board parts` has written answers, these were read, and they and parts.csv are written again.
    """
    refuse_present(
        [path for path in board.files if path.name not in _OF_PARTS or not path.with_name(_ANSWERS).is_file()]
    )
    for path, raw in board.files.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(raw)
    for note in board.notes:
        point_out("note", note)
    for path in board.files:
        if path.suffix in (".yaml", ".csv"):
            out.print(f"written: {path}")
    for line in board.open_lines:
        out.print(f"to decide: {line}")
    if board.commands:
        out.print("then:")
    for words in board.commands:
        out.print(f"  {shlex.join(words)}")


def run_commands(board: FirstBoard) -> int:
    """Run the next commands, one after another, until one fails; return the worst exit status.

    A command that found something wrong in pictures (`Exit.NOT_GOOD`) did not fail.
    """
    worst = 0
    for words in board.commands:
        err.print(f"$ {shlex.join(words)}")
        program = Path(sys.executable).with_name(words[0])
        status = subprocess.run([str(program), *words[1:]], check=False).returncode
        worst = max(worst, status)
        if status > Exit.NOT_GOOD:
            break
    return worst


app = application(
    "Make a first board from photographs, or from a placement file and pictures of whole boards.", is_group=True
)
add(app, New, Parts)
main = partial(run, app)
