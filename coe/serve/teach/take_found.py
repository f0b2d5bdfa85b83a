"""`python -m coe.serve.teach.take_found map|crops FOLDER NAME`: puts what a command has made beside a draft into it.

Nothing that a person wrote or said is lost: of a new recipe only the map is taken if there is a recipe already, and a
photograph that is cut again stays in the folder of what it shows.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from coe.files import write_atomically
from coe.serve.teach import yaml_edit
from coe.serve.teach.crop_gallery import crops
from coe.serve.teach.teach_draft import BoardDraft, files_in

FOUND, CUT = "found", "cut"
"""The folders in that of a draft in which commands write."""
_OF_THE_MAP = ("um_per_pixel", "camera", "fiducials", "held", "landmark")


def fresh(draft: BoardDraft, folder: str) -> str:
    """Empty a folder for a command; return its name as commands take it."""
    place = draft.folder / folder
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return draft.named(place)


def take_map(draft: BoardDraft) -> None:
    """Take board file, recipe and overlays; of the recipe only the map if there is one, and no board file then."""
    made = BoardDraft(draft.folder / FOUND, draft.name)
    text = made.recipe.read_text(encoding="utf-8")
    if draft.recipe.is_file():
        before = draft.recipe.read_text(encoding="utf-8")
        text = yaml_edit.with_tops(before, {key: yaml_edit.top(text, key) for key in _OF_THE_MAP}, after="side")
    for picture in files_in(made.folder):
        if picture.name.startswith("overlay-"):
            picture.replace(draft.folder / picture.name)
    if not draft.rules.is_file():
        draft.rules.parent.mkdir(exist_ok=True)
        write_atomically(draft.rules, [made.rules.read_text(encoding="utf-8")])
    write_atomically(draft.recipe, [text])
    shutil.rmtree(draft.folder / FOUND)


def take_crops(draft: BoardDraft) -> None:
    """Take photographs: what is there already is replaced where it lies, all else lies beside the folders of labels."""
    there = {(crop.component, crop.name): crop.path for found in crops(draft).values() for crop in found}
    for folder in sorted((draft.folder / CUT).iterdir()):
        for picture in files_in(folder):
            place = draft.photos / there.get((folder.name, picture.stem), f"{folder.name}/{picture.name}")
            place.parent.mkdir(parents=True, exist_ok=True)
            picture.replace(place)
    shutil.rmtree(draft.folder / CUT)


def main() -> None:
    """Take what the arguments name."""
    take = {"map": take_map, "crops": take_crops}[sys.argv[1]]
    take(BoardDraft(Path(sys.argv[2]), sys.argv[3]))


if __name__ == "__main__":
    main()
