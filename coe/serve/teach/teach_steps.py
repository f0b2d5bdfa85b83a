"""The steps of a draft in their order, and which of them are done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coe.config import counted
from coe.errors import CoeError
from coe.serve.teach.crop_gallery import crops
from coe.serve.teach.teach_draft import SCORES, BoardDraft


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
    """Return what nobody has said yet, in sentences: of which pictures, and which components have no good one.

    Raises ConfigError if nobody can tell which components there are.
    """
    found = crops(draft)
    silent = [crop.path for listed in found.values() for crop in listed if not crop.mark]
    inspected = dict.fromkeys([*found, *(site.component for site in draft.layout.sites)])
    lacking = [name for name in inspected if not any(crop.mark == "good" for crop in found.get(name, ()))]
    said = [f"{counted(len(silent), 'picture is', 'pictures are')} not said to be good or bad"] if silent else []
    return said + ([f"without a good picture: {', '.join(lacking)}"] if lacking and not silent else [])


def current(draft: BoardDraft) -> TeachStep:
    """Return the first step that is not done; the first of all for a draft whose state is broken."""
    try:
        return next(one.step for one in states(draft) if not one.done)
    except CoeError:
        return TeachStep.FILES
