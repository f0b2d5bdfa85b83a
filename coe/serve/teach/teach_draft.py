"""The draft of a board: its folder, and what a person has said of its files.

In the folder of drafts lie `routing_rules/NAME.yaml` and `NAME/recipe.yaml`, as `coe-board new NAME` writes them there;
beside them in `NAME` the uploaded files in `placements`, `bom` and `boards`, the `photos`, and `teach.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from coe import config
from coe.board.drafting import TODO, check_name
from coe.errors import ConfigError
from coe.helpers.files import write_atomically
from coe.helpers.strict_model import StrictModel, of_json
from coe.pictures.finding import EXTENSIONS
from coe.pictures.photo_split import SPLIT
from coe.placement import Bottom, Layout, Placement, PlacementFile, join, lay_out, read_bom, read_file, read_recipe
from coe.placement.bom_join import Bom, BomJoin
from coe.placement.placement_file import FileForm

FOLDER = "teach"
"""The folder of drafts in that of the service's data."""
PLACEMENTS, BOM, BOARDS, STATE = "placements", "bom", "boards", "teach.json"
SCORES = "scores.json"
Word = Annotated[str, Field(max_length=100)]


class DraftState(StrictModel):
    """What a person has said: how the placement file reads, and what was looked at and found right."""

    dialect: Word = "generic"
    units: Word = ""
    side: Word = "top"
    bottom_x: Word = ""
    bottom_angle: Word = ""
    held: bool = False
    read: bool = False
    fits: bool = False
    named: bool = False
    bounded: bool = False
    shown: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)
    """Where a person showed marks or parts, in pixels by name, by picture: there the board lies in that picture."""
    notes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What was told of each spreadsheet as it came in, by folder: only its text is kept."""


@dataclass(frozen=True, slots=True)
class Read:
    """A placement file as it was read, and joined with the BOM, if there is one."""

    file: PlacementFile
    joined: BomJoin | None
    notes: tuple[str, ...] = ()
    """How the two were read, in sentences, as of hidden rows."""

    @property
    def placements(self) -> Sequence[Placement]:
        """The parts that are fitted, and the marks."""
        return self.file.placements if self.joined is None else self.joined.placements


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
        if not path.is_file():
            return DraftState()
        try:
            return of_json(json.loads(path.read_bytes()), DraftState)
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}; delete it, and confirm again") from None

    def say(self, state: DraftState) -> None:
        """Keep what a person said."""
        write_atomically(self.folder / STATE, [state.model_dump_json(indent=1) + "\n"])

    def forget_scores(self) -> None:
        """Say that nothing is learned: what parts are, or what pictures show, is no longer what was learned from."""
        (self.folder / SCORES).unlink(missing_ok=True)

    @property
    def bottom(self) -> Bottom | None:
        """How the placement file describes the bottom side."""
        state = self.state
        return Bottom.of(state.bottom_x, state.bottom_angle) if state.side == "bottom" else None

    @property
    def form(self) -> FileForm:
        """How the recipe says that the placement file is read."""
        return read_recipe(self.recipe).placement_file if self.recipe.is_file() else FileForm()

    def read(self, state: DraftState | None = None) -> Read:
        """Read the placement file and the BOM; raises ConfigError with file and line."""
        state = state or self.state
        if self.placements is None:
            raise ConfigError("there is no placement file yet; add it among the files")
        bom = None if self.bom is None else read_bom(self.bom, state.dialect, self.form, asks=False)
        file = read_file(self.placements, state.dialect, state.units, self.form, bom)
        joined = None if bom is None else join(file.placements, bom, said=file.said, not_placed=file.not_placed)
        read_as = (bom.read_as,) if isinstance(bom, Bom) and bom.read_as else ()
        of_bom = () if joined is None else (*read_as, *state.notes.get(BOM, ()), *joined.notes)
        return Read(file, joined, (*state.notes.get(PLACEMENTS, ()), *file.notes, *of_bom))

    @property
    def layout(self) -> Layout:
        """Where the parts lie; raises ConfigError."""
        return lay_out(read_recipe(self.recipe), self.read().placements, self.bottom)

    @property
    def open_lines(self) -> list[str]:
        """The lines of its files where a person must decide."""
        return [
            line
            for path in (self.recipe, self.rules)
            if path.is_file()
            for line in path.read_text(encoding="utf-8").splitlines()
            if TODO in line.partition("#")[2]
        ]

    @property
    def is_found(self) -> bool:
        """Tell whether pictures, or a person, have told the scale."""
        return not any(line.startswith("um_per_pixel:") for line in self.open_lines)

    @property
    def placing(self) -> tuple[str, ...]:
        """The words with which a command reads the placement file as it was confirmed."""
        state, placements, bom = self.state, self.placements, self.bom
        if placements is None:
            raise ConfigError("there is no placement file yet; add it among the files")
        words = ["--placements", self.named(placements), "--dialect", state.dialect, "--units", state.units]
        words += [] if bom is None else ["--bom", self.named(bom)]
        if state.side == "bottom":
            words += ["--bottom-x", state.bottom_x, "--bottom-angle", state.bottom_angle]
        return tuple(words)

    def named(self, path: Path) -> str:
        """Return a path as commands that run in the folder of drafts name it."""
        return path.relative_to(self.root).as_posix()


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
