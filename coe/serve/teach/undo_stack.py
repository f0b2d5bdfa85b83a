"""Undo: before each step its files are kept, and what was moved is noted. Steps are taken back one after another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coe.board import calibration_file
from coe.errors import ConfigError
from coe.helpers.files import write_atomically
from coe.serve.clock import now_us
from coe.serve.teach.teach_draft import SCORES, STATE, BoardDraft

_STACK, _NOTE, _REPLACED, _KEPT = "undo", "step.json", "replaced", "kept"
_MOST = 200
"""So many steps can be taken back."""


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
    steps = _steps(draft)
    number = max(now_us(), int(steps[-1].name) + 1 if steps else 0)  # a page may show one that was taken back
    place = draft.folder / _STACK / str(number)
    kept, moved = {}, dict(moves or {})
    shutil.rmtree(place, ignore_errors=True)  # of a step that a kill ended before it was noted
    place.mkdir(parents=True)
    for path in _texts(draft):
        kept[draft.named(path)] = path.is_file()
        if path.is_file():
            (kept_as := place / _KEPT / draft.named(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept_as)
    there = {draft.named(folder): _listed(folder) for folder in made_in}
    moved |= {(name := _inner(draft, path)): f"{_inner(draft, place)}/{_REPLACED}/{name}" for path in replaced}
    note = {"what": what, "kept": kept, "moves": moved, "there": there}
    write_atomically(place / _NOTE, [json.dumps(note)])
    for before, after in moved.items():
        _move(draft.folder / before, draft.folder / after)
    for old in steps[: max(0, len(steps) + 1 - _MOST)]:
        shutil.rmtree(old)


@dataclass(frozen=True, slots=True)
class UndoStep:
    """A step that can be taken back: its number, and its name for people."""

    number: int
    what: str


def last(draft: BoardDraft) -> UndoStep | None:
    """Return the step that would be taken back next; None without one."""
    steps = _steps(draft)
    return UndoStep(int(steps[-1].name), str(_note(steps[-1])["what"])) if steps else None


def take_back(draft: BoardDraft, number: int = 0) -> str:
    """Take the last step back, which must have this number if one is given; return its name. Raises ConfigError."""
    if not (steps := _steps(draft)):
        raise ConfigError("there is no step that could be taken back")
    place, note = steps[-1], _note(steps[-1])
    if number not in (0, int(place.name)):
        raise ConfigError(f"the last step is another one now ({note['what']}); load the page again")
    for there, before in note["moves"].items():
        if (draft.folder / before).is_file():
            _move(draft.folder / before, draft.folder / there)
    for folder, before in note["there"].items():
        for name in set(_listed(draft.root / folder)) - set(before):
            (draft.root / folder / name).unlink(missing_ok=True)
    for name, was_there in note["kept"].items():
        path = draft.root / name
        if was_there:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [(place / _KEPT / name).read_text(encoding="utf-8")])
        else:
            path.unlink(missing_ok=True)
    (place / _NOTE).unlink()  # first, so that a kill leaves no step of which half is gone
    shutil.rmtree(place)
    return str(note["what"])


def _texts(draft: BoardDraft) -> list[Path]:
    calibration = calibration_file.path_for(draft.rules)
    texts = [draft.rules, calibration, draft.recipe, draft.parts, draft.answers]
    return [*texts, draft.folder / STATE, draft.folder / SCORES, draft.split]


def _steps(draft: BoardDraft) -> list[Path]:
    stack = draft.folder / _STACK
    found = [path for path in stack.iterdir() if (path / _NOTE).is_file()] if stack.is_dir() else []
    return sorted(found, key=lambda step: int(step.name))


def _note(step: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads((step / _NOTE).read_bytes())
    return note


def _move(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    path.replace(to)


def _inner(draft: BoardDraft, path: Path) -> str:
    return path.relative_to(draft.folder).as_posix()


def _listed(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
