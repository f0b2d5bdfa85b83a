"""Undo: a list of snapshots of a draft's texts, each with what its step moved. Steps are taken back one by one."""

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

_STACK, _MOST = "undo", 200
"""The folder of snapshots, and how many steps can be taken back."""


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


def last(draft: BoardDraft) -> UndoStep | None:
    """Return the step that would be taken back next; None without one."""
    steps = _steps(draft)
    return UndoStep(int(steps[-1].stem), str(_note(steps[-1])["what"])) if steps else None


def take_back(draft: BoardDraft, number: int = 0) -> str:
    """Take the last step back, which must have this number if one is given; return its name. Raises ConfigError."""
    if not (steps := _steps(draft)):
        raise ConfigError("there is no step that could be taken back")
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
