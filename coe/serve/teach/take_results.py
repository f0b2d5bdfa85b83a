"""`python -m coe.serve.teach.take_results map|crops|chosen FOLDER NAME [STORE]`: puts what a command made into a draft.

Nothing that a person said is lost: of a new recipe only the map is taken if there is a recipe already, and a
photograph that is cut again stays in the folder of what it shows. Components for which there are too few pictures stay
compared with a good part; what that needs is made, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from coe.board import rules
from coe.cli.start import Exit
from coe.helpers import strict_yaml
from coe.placement import read_board, read_places
from coe.serve.teach import board_map
from coe.serve.teach.crop_gallery import crops
from coe.serve.teach.teach_draft import BoardDraft, DraftState, files_in, text_of
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
    """Take recipe, rules and overlays; of the recipe only the map if there is one, and no rules then."""
    made, state = BoardDraft(draft.folder / FOUND, draft.name), draft.state
    found = made.state
    assert found.recipe is not None
    if state.recipe is None:
        made.parts.replace(draft.parts)
        made.answers.replace(draft.answers)
        state = state.model_copy(update={"recipe": found.recipe, "open": found.open})
    else:
        kept = {key: value for key, value in state.recipe.items() if key not in _OF_THE_MAP}
        of_map = {key: found.recipe[key] for key in _OF_THE_MAP if key in found.recipe}
        still = [word for word in state.open if word not in _OF_THE_MAP]
        still += [word for word in found.open if word in _OF_THE_MAP]
        state = state.model_copy(update={"recipe": kept | of_map, "open": tuple(still)})
        state = _with_new_parts(draft, made, found, state)
    for picture in files_in(made.folder):
        if picture.name.startswith("overlay-"):
            picture.replace(draft.folder / picture.name)
    draft.say(state.model_copy(update={"rules": state.rules or found.rules}))
    shutil.rmtree(draft.folder / FOUND)


def _with_new_parts(draft: BoardDraft, made: BoardDraft, found: DraftState, state: DraftState) -> DraftState:
    """Return a draft with the components that another placement file alone has, as the new recipe has them.

    Of those parts, what no picture shows is not inspected.
    """
    assert state.recipe is not None
    assert found.recipe is not None
    known = state.recipe["components"]
    seen = {part.refdes for part in read_places(made.parts) if part.component}
    read = draft.read(state)
    new = [part for part in read.parts if part.side == state.side and part.component not in {"", *known}]
    unseen = [part.refdes for part in new if part.refdes not in seen]
    said = read.answers
    more = {"not_inspected": (*said.not_inspected, *unseen)}
    draft.keep(draft.read(state, said=said.model_copy(update=more)))
    names = dict.fromkeys(part.component for part in new if part.refdes in seen)
    changes: dict[str, Any] = {"open": (*state.open, *(word for word in found.open if word in names))}
    for key, mine, theirs in (("recipe", state.recipe, found.recipe), ("rules", state.rules, found.rules)):
        if mine is not None and theirs is not None:
            added = {name: theirs["components"][name] for name in names if name in theirs["components"]}
            changes[key] = {**mine, "components": added | mine["components"]}
    return state.model_copy(update=changes)


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
    """Take the chosen experts into the rules; return the components that have none."""
    chosen, state = draft.folder / CHOSEN / f"{draft.name}.yaml", draft.state
    assert state.rules is not None
    board = deepcopy(state.rules)
    found = strict_yaml.parse(chosen, chosen.read_bytes()).data if chosen.is_file() else {"components": {}}
    for name, one in found["components"].items():
        board["experts"][name] = found["experts"][name]
        component = board["components"][name]
        component["inspect"] = name
        if "polarity" in one:
            component.setdefault("polarity", one["polarity"])
        component.pop("reference", None)  # it has learned without one
    rules.of_bytes(draft.rules, text_of(board).encode())
    draft.say(state.model_copy(update={"rules": board}))
    return [name for name in board["components"] if name not in found["components"]]


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
