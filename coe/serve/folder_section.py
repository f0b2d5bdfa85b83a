"""The section `folders` of a service's config: folders that fill, whose pictures are handed in as boards."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from coe.helpers.strict_model import Name, StrictModel
from coe.serve.text_checks import Word

Seconds = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]


class FolderSection(StrictModel):
    """A folder `path` whose pictures are boards of the active version of a `recipe`; what is handed in goes to `done`.

    A picture counts once it stood still for `settle_s`; a board that is not known to be complete is handed in once
    nothing of it came for `quiet_s`.
    """

    path: Path
    done: Path
    recipe: Word
    settle_s: Seconds = 2.0
    quiet_s: Seconds = 30.0

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.done.absolute().is_relative_to(self.path.absolute()):
            raise ValueError("`done` lies in `path`, so what is done would be handed in again; choose another folder")
        return self


def _each_alone(folders: dict[str, FolderSection]) -> dict[str, FolderSection]:
    for (name, one), (other, outer) in permutations(folders.items(), 2):
        if one.path.absolute().is_relative_to(outer.path.absolute()):
            raise ValueError(f"'{name}' lies in the folder of '{other}', so its pictures would be handed in twice")
    return folders


Folders = Annotated[dict[Name, FolderSection], AfterValidator(_each_alone)]
