"""The steps of a draft in their order, and which of them are done; its photographs and their labels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from coe.board import calibration_file
from coe.config import counted
from coe.errors import CoeError, ConfigError
from coe.helpers.files import write_atomically
from coe.pictures import finding
from coe.pictures.label_folders import GOOD, letters
from coe.pictures.photographs import natural
from coe.serve.clock import now_us
from coe.serve.teach.teach_draft import SCORES, STATE, BoardDraft


class TeachStep(StrEnum):
    """A step; its word stands in the address of its page."""

    FILES = "files"
    READING = "reading"
    PLACE = "place"
    PACKAGES = "packages"
    PICTURES = "pictures"
    LEARN = "learn"
    THRESHOLD = "threshold"
    ACTIVATE = "activate"

    @property
    def heading(self) -> str:
        """Its name for people."""
        return {TeachStep.READING: "placement file", TeachStep.PICTURES: "good and bad"}.get(
            self, str(self)
        ).capitalize()


@dataclass(frozen=True, slots=True)
class StepState:
    """A step, whether it is done, and whether it can be begun."""

    step: TeachStep
    done: bool
    can: bool


def states(draft: BoardDraft) -> list[StepState]:
    """Return the steps of a draft; raises ConfigError for a state that somebody broke."""
    said = draft.state
    files = draft.placements is not None and bool(draft.pictures)
    read = files and said.read
    place = read and draft.recipe.is_file() and said.fits
    packages = place and said.named and not draft.open_lines
    pictures = packages and not missing(draft)
    learned = pictures and (draft.folder / SCORES).is_file()
    done = [files, read, place, packages, pictures, learned, learned and said.bounded, False]
    can = [True, files, read, place, packages, pictures, learned, learned]
    return [StepState(step, *pair) for step, *pair in zip(TeachStep, done, can, strict=True)]


def missing(draft: BoardDraft) -> list[str]:
    """Return what is not said yet, in sentences: unmarked pictures, and components without a good one."""
    found = crops(draft)
    silent = [crop.path for listed in found.values() for crop in listed if not crop.mark]
    inspected = dict.fromkeys([*found, *(site.component for site in draft.layout.sites)])
    lacking = [name for name in inspected if not any(crop.mark == "good" for crop in found.get(name, ()))]
    said = [f"{counted(len(silent), 'picture is', 'pictures are')} not marked good or bad"] if silent else []
    return said + ([f"without a good picture: {', '.join(lacking)}"] if lacking and not silent else [])


def current(draft: BoardDraft) -> TeachStep:
    """Return the first step that is not done; the first of all for a draft whose state is broken."""
    try:
        return next(one.step for one in states(draft) if not one.done)
    except CoeError:
        return TeachStep.FILES


# The photographs of a draft: each lies in the folder of what it shows, and is moved when a person says otherwise.
Mark = Literal["good", "bad", ""]


@dataclass(frozen=True, slots=True)
class Crop:
    """A photograph: its path in the folder of photographs, its component, and its folder's label ("" if unsaid)."""

    path: str
    component: str
    label: str

    @property
    def mark(self) -> Mark:
        """Whether the part in it is good."""
        if not self.label:
            return ""
        return "good" if letters(self.label) in GOOD else "bad"

    @property
    def name(self) -> str:
        """Its file name without the ending."""
        return self.path.rpartition("/")[2].rpartition(".")[0]


def crops(draft: BoardDraft) -> dict[str, list[Crop]]:
    """Return the photographs by component, in the order of their names, whatever their labels are."""
    found: dict[str, list[Crop]] = {}
    components = [path.name for path in draft.photos.iterdir()] if draft.photos.is_dir() else []
    for one in finding.photographs_in(draft.photos, components) if components else []:
        if one.component and one.failure is None:
            path = one.path.relative_to(draft.photos).as_posix()
            found.setdefault(one.component, []).append(Crop(path, one.component, one.label))
    return {component: sorted(own, key=lambda crop: natural(crop.name)) for component, own in sorted(found.items())}


def mark(draft: BoardDraft, said: Mapping[str, Mark]) -> dict[str, str]:
    """Move photographs into the folders of what they show; return the new paths by the old. Raises ConfigError."""
    known = {crop.path: crop for of_component in crops(draft).values() for crop in of_component}
    if unknown := [path for path in said if path not in known]:
        raise ConfigError(f"there is no photograph '{unknown[0][:200]}' any more; load the page again")
    moves = {}
    for path, word in said.items():
        crop = known[path]
        if crop.mark != word:
            moves[path] = "/".join(part for part in (crop.component, word, path.rpartition("/")[2]) if part)
    if taken := [after for after in moves.values() if (draft.photos / after).exists()]:
        raise ConfigError(f"photos/{taken[0]} exists already; rename one of the two")
    if moves:
        what = f"{counted(len(moves), 'picture')} marked"
        remember(draft, what, moves={f"photos/{a}": f"photos/{b}" for a, b in moves.items()})
        draft.forget_scores()
    return {path: moves.get(path, path) for path in said}


# Undo: a list of snapshots of a draft's texts, each with what its step moved. Steps are taken back one by one.
_STACK, _MOST = "undo", 200  # the folder of snapshots, and how many steps can be taken back


def remember(
    draft: BoardDraft,
    what: str,
    *,
    moves: Mapping[str, str] | None = None,
    replaced: Iterable[Path] = (),
    made_in: Iterable[Path] = (),
) -> None:
    """Keep the texts of a draft before a step, whose name for people is `what`, and move the files that it moves.

    `moves` are those, from and to, within the draft's folder; those that are `replaced` are put away. What the step
    makes in the folders `made_in` goes when it is taken back.
    """
    if not (draft.folder / STATE).is_file():  # of commands
        draft.say(draft.state)
    steps = _steps(draft)
    number = max(now_us(), int(steps[-1].stem) + 1 if steps else 0)  # a page may show one that was taken back
    moved = dict(moves or {})
    moved |= {(name := _inner(draft, path)): f"{_STACK}/{number}/{name}" for path in replaced}
    texts = {draft.named(path): path.read_text(encoding="utf-8") if path.is_file() else None for path in _texts(draft)}
    there = {draft.named(folder): _listed(folder) for folder in made_in}
    (draft.folder / _STACK).mkdir(parents=True, exist_ok=True)
    note = json.dumps({"what": what, "texts": texts, "moves": moved, "there": there})
    write_atomically(draft.folder / _STACK / f"{number}.json", [note])
    for before, after in moved.items():
        _move(draft.folder / before, draft.folder / after)
    for old in steps[: max(0, len(steps) + 1 - _MOST)]:
        _forget(old)


@dataclass(frozen=True, slots=True)
class UndoStep:
    """A step that can be taken back: its number, and its name for people."""

    number: int
    what: str


def last_step(draft: BoardDraft) -> UndoStep | None:
    """Return the step that would be taken back next; None without one."""
    steps = _steps(draft)
    return UndoStep(int(steps[-1].stem), str(_note(steps[-1])["what"])) if steps else None


def take_back(draft: BoardDraft, number: int = 0) -> str:
    """Take the last step back, which must have this number if one is given; return its name. Raises ConfigError."""
    if not (steps := _steps(draft)):
        raise ConfigError("there is no step to undo")
    place, note = steps[-1], _note(steps[-1])
    if number not in (0, int(place.stem)):
        raise ConfigError(f"the last step is another one now ({note['what']}); load the page again")
    for there, before in note["moves"].items():
        if (draft.folder / before).is_file():
            _move(draft.folder / before, draft.folder / there)
    for folder, before in note["there"].items():
        for name in set(_listed(draft.root / folder)) - set(before):
            (draft.root / folder / name).unlink(missing_ok=True)
    for name, text in note["texts"].items():
        path = draft.root / name
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [text])
    draft.say(draft.state)  # writes board file and recipe
    _forget(place)
    return str(note["what"])


def _texts(draft: BoardDraft) -> list[Path]:
    files = [draft.folder / STATE, draft.parts, draft.answers, draft.folder / SCORES, draft.split]
    return [*files, calibration_file.path_for(draft.rules)]


def _steps(draft: BoardDraft) -> list[Path]:
    return sorted((draft.folder / _STACK).glob("*.json"), key=lambda step: int(step.stem))


def _forget(step: Path) -> None:
    step.unlink()  # first, so that a kill leaves no step of which half is gone
    shutil.rmtree(step.with_suffix(""), ignore_errors=True)


def _note(step: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(step.read_bytes())
    return note


def _move(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    path.replace(to)


def _inner(draft: BoardDraft, path: Path) -> str:
    return path.relative_to(draft.folder).as_posix()


def _listed(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
