"""The steps of a draft in their order, and which of them are done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coe.errors import CoeError
from coe.serve.teach.crop_gallery import crops
from coe.serve.teach.teach_draft import BoardDraft


class TeachStep(StrEnum):
    """A step; its word stands in the address of its page."""

    FILES = "files"
    READING = "reading"
    PLACE = "place"
    PACKAGES = "packages"
    PICTURES = "pictures"

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
    found = crops(draft) if packages else {}
    pictures = bool(found) and all(any(crop.mark == "good" for crop in listed) for listed in found.values())
    done = [files, read, place, packages, pictures]
    can = [True, files, read, place, packages]
    return [StepState(step, *pair) for step, *pair in zip(TeachStep, done, can, strict=True)]


def current(draft: BoardDraft) -> TeachStep:
    """Return the first step that is not done; the first of all for a draft whose state is broken."""
    try:
        return next((one.step for one in states(draft) if not one.done), TeachStep.PICTURES)
    except CoeError:
        return TeachStep.FILES
