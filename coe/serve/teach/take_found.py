"""`python -m coe.serve.teach.take_found map|crops FOLDER NAME`: puts what a command has made beside a draft into it.

Nothing that a person wrote or said is lost: of a new recipe only the map is taken if there is a recipe already, and a
photograph that is cut again stays in the folder of what it shows.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from coe.files import write_atomically
from coe.placement import parse_recipe, read_recipe
from coe.placement.inspected_parts import component_of, is_left_out
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
        text = _with_new_parts(draft, made, text)
    for picture in files_in(made.folder):
        if picture.name.startswith("overlay-"):
            picture.replace(draft.folder / picture.name)
    if not draft.rules.is_file():
        draft.rules.parent.mkdir(exist_ok=True)
        write_atomically(draft.rules, [made.rules.read_text(encoding="utf-8")])
    write_atomically(draft.recipe, [text])
    shutil.rmtree(draft.folder / FOUND)


def _with_new_parts(draft: BoardDraft, made: BoardDraft, text: str) -> str:
    """Return a recipe with parts that another placement file alone has, as the new recipe has them; also the rules."""
    old, new = parse_recipe(draft.recipe, text.encode()), read_recipe(made.recipe)
    rules = draft.rules.read_text(encoding="utf-8") if draft.rules.is_file() else ""
    kinds, left_out = {}, []
    for place in draft.read().placements:
        if place.side == old.side and place.refdes and not is_left_out(old, place) and not component_of(old, place):
            if is_left_out(new, place):
                left_out.append(json.dumps(place.refdes))
            elif name := component_of(new, place):
                kinds[place.package, place.value] = name
    if left_out:
        text = yaml_edit.with_items(text, "not_inspected", left_out)
    for (package, value), name in kinds.items():
        words = {"package": package, "value": value, "component": name}
        entry = ", ".join(f"{key}: {json.dumps(word, ensure_ascii=False)}" for key, word in words.items() if word)
        text = yaml_edit.with_line(text, "placed_as", f"- {{{entry}}}")
        if not yaml_edit.has(text, ("components", name)):
            text = yaml_edit.with_line(text, "components", yaml_edit.line(made.recipe.read_text("utf-8"), name))
        if rules and not yaml_edit.has(rules, ("components", name)):
            rules = yaml_edit.with_line(rules, "components", yaml_edit.line(made.rules.read_text("utf-8"), name))
    if rules:
        write_atomically(draft.rules, [rules])
    return text


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
