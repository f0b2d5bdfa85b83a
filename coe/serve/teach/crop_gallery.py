"""The photographs of a draft: each lies in the folder of what it shows, and is moved when a person says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coe.config import counted
from coe.errors import ConfigError
from coe.pictures import finding
from coe.pictures.label_folders import GOOD, letters
from coe.pictures.photographs import natural
from coe.serve.teach import undo_stack
from coe.serve.teach.teach_draft import BoardDraft

Mark = Literal["good", "bad", ""]


@dataclass(frozen=True, slots=True)
class Crop:
    """A photograph: its path in the folder of photographs, and what it shows.

    `label` is the name of its folder, empty if nobody has said anything, and `mark` is good, bad or empty.
    """

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
    """Move photographs into the folders of what they show; return where each lies now, by its path before.

    Raises ConfigError for a photograph that is not there.
    """
    known = {crop.path: crop for of_component in crops(draft).values() for crop in of_component}
    if unknown := [path for path in said if path not in known]:
        raise ConfigError(f"there is no photograph '{unknown[0][:200]}' any more; load the page again")
    moves = {}
    for path, word in said.items():
        crop = known[path]
        if crop.mark != word:
            moves[path] = "/".join(part for part in (crop.component, word, path.rpartition("/")[2]) if part)
    if taken := [after for after in moves.values() if (draft.photos / after).exists()]:
        raise ConfigError(f"photos/{taken[0]} is there already; rename one of the two")
    if moves:
        what = f"{counted(len(moves), 'picture')} marked"
        undo_stack.remember(draft, what, moves={f"photos/{a}": f"photos/{b}" for a, b in moves.items()})
        draft.forget_scores()
    return {path: moves.get(path, path) for path in said}
