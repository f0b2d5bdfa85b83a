"""The draft of a board: its folder, and what a person has said of it, in one `draft.json`.

Board file and board recipe are written from it, as `routing_rules/NAME.yaml` and `NAME/recipe.yaml`, for the commands.
A board that was begun with commands is taken from these files once. Beside them in `NAME` lie the uploaded files in
`placements`, `bom` and `boards`, and the `photos`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from coe import config
from coe.board import parts_list
from coe.board.drafting import TODO, check_name
from coe.board.parts_list import Side
from coe.bring.parts import answers
from coe.bring.parts.answers import Answers
from coe.bring.parts.converting import Converted, convert
from coe.errors import ConfigError
from coe.helpers import strict_yaml
from coe.helpers.files import write_atomically
from coe.helpers.strict_model import StrictModel, of_json
from coe.pictures.formats import EXTENSIONS
from coe.pictures.photographs import SPLIT
from coe.placement import Layout, lay_out, read_places, read_recipe

FOLDER = "teach"  # the folder of drafts in that of the service's data
PLACEMENTS, BOM, BOARDS, STATE = "placements", "bom", "boards", "draft.json"
SCORES = "scores.json"
FOUND, CUT, CHOSEN = "found", "cut", "chosen"  # the folders in that of a draft in which commands write
Word = Annotated[str, Field(max_length=100)]


class Reading(StrictModel):
    """How a placement file reads, as said in the answers; `read` says that a person found it right."""

    units: Word = ""
    side: Word = "top"
    bottom_x: Word = ""
    bottom_angle: Word = ""
    held: bool = False
    read: bool = False


class DraftState(Reading):
    """What a person has said, and found right; `recipe` and `rules` are the data of the two files, in plain words.

    `open` names what of the recipe must still be decided: its keys, and components whose size nobody knows.
    """

    recipe: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None
    open: tuple[str, ...] = ()
    fits: bool = False
    named: bool = False
    bounded: bool = False
    shown: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)
    """Where a person showed marks or parts, in pixels by name, by picture: there the board lies in that picture."""
    notes: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # told of each spreadsheet as it came in, by folder


@dataclass(frozen=True, slots=True)
class BoardDraft:
    """A draft in the folder `root`; nothing needs to be there yet. Raises ConfigError for a name that boards cannot
    have."""

    root: Path
    name: str

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.name.casefold() == config.RULES_FOLDER:
            raise ConfigError(f"'{self.name}' is the name of the folder of board files; give another name")

    @property
    def folder(self) -> Path:
        """Where its files lie, except the board file."""
        return self.root / self.name

    @property
    def rules(self) -> Path:
        """The board file."""
        return self.root / config.RULES_FOLDER / f"{self.name}.yaml"

    @property
    def recipe(self) -> Path:
        """The board recipe."""
        return self.folder / "recipe.yaml"

    @property
    def placements(self) -> Path | None:
        """The placement file; None without one."""
        return next(iter(files_in(self.folder / PLACEMENTS)), None)

    @property
    def bom(self) -> Path | None:
        """The BOM; None without one."""
        return next(iter(files_in(self.folder / BOM)), None)

    @property
    def photos(self) -> Path:
        """The photographs of its components."""
        return self.folder / "photos"

    @property
    def split(self) -> Path:
        """Which photographs are to learn from, if some are kept back."""
        return self.photos / SPLIT

    @property
    def pictures(self) -> list[Path]:
        """The pictures of whole boards, in the order of their names."""
        return [path for path in files_in(self.folder / BOARDS) if path.suffix.lower() in EXTENSIONS]

    @property
    def there(self) -> bool:
        """Whether somebody has begun it, at the pages or with commands."""
        return self.folder.is_dir() or self.rules.is_file()

    @property
    def state(self) -> DraftState:
        """What was said of it; raises ConfigError for a file that somebody broke."""
        path = self.folder / STATE
        try:
            return of_json(json.loads(path.read_bytes()) if path.is_file() else self._of_commands(), DraftState)
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}; delete it, and confirm again") from None

    def _of_commands(self) -> dict[str, Any]:
        """Return recipe and rules as commands, or a person, have written them."""
        data = {
            key: strict_yaml.parse(path, path.read_bytes()).data
            for key, path in (("recipe", self.recipe), ("rules", self.rules))
            if path.is_file()
        }
        text = self.recipe.read_text(encoding="utf-8") if self.recipe.is_file() else ""
        todo = [line.split(":")[0].strip() for line in text.splitlines() if TODO in line.partition("#")[2]]
        return {**data, "open": todo}

    def say(self, state: DraftState) -> None:
        """Keep what a person said, and write board file and recipe from it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / STATE, [state.model_dump_json(indent=1) + "\n"])
        for path, data in ((self.recipe, state.recipe), (self.rules, state.rules)):
            path.parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, [text_of(data)])

    def forget_scores(self) -> None:
        """Say that nothing is learned: what parts are, or what pictures show, is no longer what was learned from."""
        (self.folder / SCORES).unlink(missing_ok=True)

    @property
    def parts(self) -> Path:
        """The parts.csv that is made of the placement file."""
        return self.folder / parts_list.NAME

    @property
    def answers(self) -> Path:
        """What is said of the placement file, and what its packages are called."""
        return self.folder / answers.NAME

    def read(self, state: DraftState | None = None, said: Answers | None = None) -> Converted:
        """Read the placement file and the BOM as a person says; raises ConfigError with file and line."""
        state = state or self.state
        if self.placements is None:
            raise ConfigError("there is no placement file yet; add it among the files")
        if said is None:
            said = answers.read(self.answers) if self.answers.is_file() else Answers()
        more: dict[str, Any] = {"unit": state.units} if state.units else {}
        if state.side == Side.BOTTOM:
            more["bottom"] = {"x": state.bottom_x, "angle": state.bottom_angle}
        return convert(self.placements, self.bom, said.with_more(more))

    def keep(self, read: Converted) -> None:
        """Write parts.csv and the answers of a placement file that was read."""
        made_of = " and ".join(path.name for path in (self.placements, self.bom) if path)
        write_atomically(self.parts, [read.text(f"made of {made_of} at the station")])
        write_atomically(self.answers, [read.answers.text()])

    @property
    def layout(self) -> Layout:
        """Where the parts lie; raises ConfigError."""
        return lay_out(read_recipe(self.recipe), read_places(self.parts))

    @property
    def open_lines(self) -> list[str]:
        """What a person must decide: words of the recipe, and lines of the answers."""
        text = self.answers.read_text(encoding="utf-8") if self.answers.is_file() else ""
        return [*self.state.open, *(line for line in text.splitlines() if TODO in line.partition("#")[2])]

    @property
    def is_found(self) -> bool:
        """Tell whether pictures, or a person, have told the scale."""
        return "um_per_pixel" not in self.state.open

    @property
    def reading(self) -> tuple[str, ...]:
        """The words with which `coe-board new` reads the placement file as it was confirmed."""
        if self.placements is None:
            raise ConfigError("there is no placement file yet; add it among the files")
        words = ("--placements", self.named(self.placements), "--answers", self.named(self.answers), "--yes")
        return words if self.bom is None else (*words, "--bom", self.named(self.bom))

    def fresh(self, folder: str) -> str:
        """Empty a folder for a command; return its name as commands take it."""
        place = self.folder / folder
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return self.named(place)

    def named(self, path: Path) -> str:
        """Return a path as commands that run in the folder of drafts name it."""
        return path.relative_to(self.root).as_posix()


class _Words(yaml.SafeDumper):
    """Writes words as they stand: readers of these files take numbers and `no` as words, too."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as yaml has it
        first: [one for one in known if one[0].endswith(":null")]
        for first, known in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


def text_of(data: dict[str, Any]) -> str:
    """Return the data of a file as YAML."""
    head = "# Written by the station, which writes it again.\n"
    return head + yaml.dump(data, Dumper=_Words, sort_keys=False, allow_unicode=True, default_flow_style=None)


def drafts(root: Path) -> list[BoardDraft]:
    """Return all drafts of a folder, also those that were begun with commands."""
    names = {path.name for path in _in(root) if path.is_dir() and path.name != config.RULES_FOLDER}
    names |= {path.stem for path in _in(root / config.RULES_FOLDER) if path.suffix == ".yaml" and "." not in path.stem}
    found = []
    for name in sorted(names):
        try:
            found.append(BoardDraft(root, name))
        except ConfigError:  # a folder of something else
            continue
    return found


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder in the order of their names; none if it is not there. Hidden files are none."""
    return [path for path in _in(folder) if path.is_file() and not path.name.startswith(".")]


def _in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
