"""`python -m coe.serve.teach.take_results map|crops|chosen FOLDER NAME [STORE]`: puts what a command made into a draft.

Nothing that a person wrote or said is lost: of a new recipe only the map is taken if there is a recipe already, and a
photograph that is cut again stays in the folder of what it shows. Components for which there are too few pictures stay
compared with a good part; what that needs is made, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from coe.board import rules
from coe.cli.start import Exit
from coe.helpers.files import write_atomically
from coe.placement import parse_recipe, read_board, read_places
from coe.serve.teach import board_map, yaml_edit
from coe.serve.teach.crop_gallery import crops
from coe.serve.teach.teach_draft import BoardDraft, files_in
from coe.serve.teach.teach_work import command_of

FOUND, CUT, CHOSEN = "found", "cut", "chosen"
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
    else:
        made.parts.replace(draft.parts)
        made.answers.replace(draft.answers)
    for picture in files_in(made.folder):
        if picture.name.startswith("overlay-"):
            picture.replace(draft.folder / picture.name)
    if not draft.rules.is_file():
        draft.rules.parent.mkdir(exist_ok=True)
        write_atomically(draft.rules, [made.rules.read_text(encoding="utf-8")])
    write_atomically(draft.recipe, [text])
    shutil.rmtree(draft.folder / FOUND)


def _with_new_parts(draft: BoardDraft, made: BoardDraft, text: str) -> str:
    """Return a recipe with the components that another placement file alone has, as the new recipe has them.

    Also the board file; of those parts, what no picture shows is not inspected.
    """
    old = parse_recipe(draft.recipe, text.encode())
    seen = {part.refdes for part in read_places(made.parts) if part.component}
    read = draft.read()
    new = [part for part in read.parts if part.side is old.side and part.component not in {"", *old.components}]
    unseen = [part.refdes for part in new if part.refdes not in seen]
    said = read.answers
    draft.keep(draft.read(said=said.model_copy(update={"not_inspected": (*said.not_inspected, *unseen)})))
    rules = draft.rules.read_text(encoding="utf-8") if draft.rules.is_file() else ""
    for name in dict.fromkeys(part.component for part in new if part.refdes in seen):
        text = yaml_edit.with_entry(text, ("components",), yaml_edit.line(made.recipe.read_text("utf-8"), name))
        if rules and not yaml_edit.has(rules, ("components", name)):
            rules = yaml_edit.with_entry(rules, ("components",), yaml_edit.line(made.rules.read_text("utf-8"), name))
    if rules:
        write_atomically(draft.rules, [rules])
    return text


def take_crops(draft: BoardDraft) -> None:
    """Take photographs: what is there already is replaced where it lies, all else lies beside the folders of labels.

    Where a person showed how the board lies and its marks are not found, the parts are cut out as it was shown.
    """
    there = {(crop.component, crop.name): crop.path for found in crops(draft).values() for crop in found}
    for picture in draft.pictures:
        if picture.name not in draft.state.shown:
            continue
        board = read_board(picture, draft.layout, picture.stem)
        if board.location is None:
            continue
        location = board_map.as_shown(draft, picture.name, board.location)
        for part in replace(board, location=location).pictures() if location is not board.location else ():
            place = draft.folder / CUT / part.component / f"{part.refdes}-{part.serial}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(np.asarray(part.image)[:, :, ::-1])).save(place, "PNG")
    for folder in sorted((draft.folder / CUT).iterdir()):
        for picture in files_in(folder):
            place = draft.photos / there.get((folder.name, picture.stem), f"{folder.name}/{picture.name}")
            place.parent.mkdir(parents=True, exist_ok=True)
            picture.replace(place)
    shutil.rmtree(draft.folder / CUT)


def take_chosen(draft: BoardDraft) -> list[str]:
    """Write the lines of the chosen experts into the board file; return the components that have none."""
    chosen = draft.folder / CHOSEN / f"{draft.name}.yaml"
    text = draft.rules.read_text(encoding="utf-8")
    names: list[str] = []
    if chosen.is_file():
        lines = chosen.read_text(encoding="utf-8")
        names = list(rules.of_bytes(chosen, lines.encode()).components)
        for name in names:
            entry = yaml_edit.value(lines, ("experts", name))
            if yaml_edit.has(text, ("experts", name)):
                text = yaml_edit.with_value(text, ("experts", name), entry)
            else:
                text = yaml_edit.with_entry(text, ("experts",), f"{name}: {entry}")
            text = yaml_edit.with_value(text, ("components", name, "inspect"), name)
            polarity = ("components", name, "polarity")
            if yaml_edit.has(lines, polarity) and not yaml_edit.has(text, polarity):
                text = yaml_edit.with_key(text, polarity, yaml_edit.value(lines, polarity))
            if yaml_edit.has(text, ("components", name, "reference")):  # it has learned without one
                text = yaml_edit.without(text, ("components", name, "reference"))
    board = rules.of_bytes(draft.rules, text.encode())
    write_atomically(draft.rules, [text])
    return [name for name in board.components if name not in names]


def compared(draft: BoardDraft, store: str) -> list[tuple[str, ...]]:
    """Return the commands that make references, and train the experts that compare with them."""
    board = rules.load(str(draft.rules))
    comparing = {one.root.expert for one in board.components.values() if one.references and one.root.expert}
    own = sorted(id for id in comparing if board.experts[id].kind == "difference")
    if not own:
        return []
    file, photos = draft.named(draft.rules), draft.named(draft.photos)
    make = ("coe-experts", "reference", file, "--images", photos, "--first-of-two", "--store", store)
    learn = ("--data", photos, "--epochs", "1", "--no-prepare", "--store", store)
    return [make, *(("coe-experts", "train", board.experts[id].weights, "--board", file, *learn) for id in own)]


def _learn_rest(draft: BoardDraft, store: str) -> None:
    """Take the chosen experts, and make what the others need; ends with the status of a command that failed."""
    if rest := take_chosen(draft):
        print(f"compared with a good part, for want of pictures: {', '.join(rest)}", flush=True)
    for words in compared(draft, store):
        status = subprocess.run(command_of(words), check=False).returncode
        if status not in (Exit.OK, Exit.NOT_GOOD):
            sys.exit(status)


def main() -> None:
    """Take what the arguments name."""
    what, root, name, *rest = sys.argv[1:]
    takers: dict[str, Callable[..., None]] = {"map": take_map, "crops": take_crops, "chosen": _learn_rest}
    takers[what](BoardDraft(Path(root), name), *rest)


if __name__ == "__main__":
    main()
