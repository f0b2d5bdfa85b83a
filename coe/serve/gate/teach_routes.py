"""What the pages that teach a board send: files, words on them, and the commands that are run for each step."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
from PIL import Image
from pydantic import Field
from starlette.responses import Response

from coe.errors import ConfigError, ImageError
from coe.files import write_atomically
from coe.pictures.finding import EXTENSIONS
from coe.pictures.image_source import ImageSource
from coe.serve.database import audit
from coe.serve.gate.operations import ENGINEER, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing, not_found
from coe.serve.gate.teach_files import draft_named, draft_of, idle
from coe.serve.teach import board_map, crop_gallery, package_table, teach_work, undo_stack, yaml_edit
from coe.serve.teach.crop_gallery import Mark
from coe.serve.teach.package_table import NamedPackage
from coe.serve.teach.take_results import CUT, FOUND, fresh
from coe.serve.teach.teach_draft import BOARDS, BoardDraft, DraftState
from coe.serve.teach.teach_steps import TeachStep
from coe.strict_model import StrictModel

router = OperationRouter()
_SIDE, _CROP_SIDE, _QUALITY = 2000, 400, 88
Pixel = Annotated[float, Field(ge=-100_000, le=200_000, allow_inf_nan=False)]


class NewDraft(StrictModel):
    """The name of a new board."""

    name: str


@router.add("POST", "/teach", ENGINEER, body=NewDraft, answers={201: "its name"})
async def begin(visit: Visit) -> Mapping[str, Any]:
    """Begin a board."""

    def make() -> BoardDraft:
        draft = draft_named(visit, visit.body.form.name.strip())
        if draft.there:
            raise ConfigError(f"there is a draft '{draft.name}' already; go on with it, or give another name")
        draft.folder.mkdir(parents=True)
        return draft

    draft = await visit.gate.keep(make)
    await _note(visit, draft, "begin board")
    return {"draft": draft.name}


@router.add("POST", "/teach/{draft}/reading", ENGINEER, body=DraftState, answers={202: "the board is searched"})
async def read_so(visit: Visit) -> Mapping[str, Any]:
    """Say how the placement file reads; `read` says that all is right, and the board is searched in the pictures."""
    said: DraftState = visit.body.form

    def keep(draft: BoardDraft) -> None:
        undo_stack.remember(draft, "Placement file read")
        state = draft.state.model_copy(update={**said.model_dump(), "fits": False, "named": draft.state.named})
        if said.read:
            read = draft.read(state)
            board_map.planned_of(read, state)
            state = state.model_copy(update={"units": str(read.file.units)})
        draft.say(state)

    await idle(visit, keep)
    if said.read:
        await idle(visit, partial(_search, visit, {}))
    return {}


class PointsRequest(StrictModel):
    """Where a person sees marks or parts in a picture, in pixels, by name; empty to search the board."""

    points: Annotated[dict[str, tuple[Pixel, Pixel]], Field(default_factory=dict, max_length=8)]


@router.add("POST", "/teach/{draft}/place", ENGINEER, body=PointsRequest, answers={202: "the board is searched"})
async def place(visit: Visit) -> Mapping[str, Any]:
    """Find the board in the pictures, near where a person shows it; of the recipe only the map changes."""
    await idle(visit, partial(_search, visit, visit.body.form.points))
    return {}


def _search(visit: Visit, points: Mapping[str, tuple[float, float]], draft: BoardDraft) -> None:
    if points:
        board_map.through(draft, points)
    undo_stack.remember(draft, "Board placed by hand" if points else "Board searched")
    state = draft.state
    words = [word for pair in board_map.as_words(points) for word in ("--mark", pair)]
    words += ["--held"] if state.held else []
    words += ["--side", "bottom"] if state.side == "bottom" else []
    images = f"{draft.name}/{BOARDS}"
    new = ("coe-board", "new", draft.name, "--to", fresh(draft, FOUND), *draft.placing, "--images", images, *words)
    take = ("coe.serve.teach.take_results", "map", str(draft.root), draft.name)
    draft.say(state.model_copy(update={"fits": False}))
    visit.gate.works.begin(draft, "The board is looked for in the pictures", TeachStep.PLACE, [new, take])


@router.add("GET", "/teach/{draft}/map/{file}", ENGINEER)
async def get_map(visit: Visit) -> Mapping[str, Any]:
    """How the board lies in a picture, with the corners of all parts."""
    draft = await visit.gate.keep(partial(draft_of, visit))
    return await visit.gate.draw(lambda: board_map.shown(draft, picture_of(visit, draft)))


@router.add("POST", "/teach/{draft}/map", ENGINEER, body=PointsRequest)
async def try_map(visit: Visit) -> Mapping[str, Any]:
    """The map through points that a person shows; nothing is kept."""
    draft = await visit.gate.keep(partial(draft_of, visit))
    return {"matrix": await visit.gate.keep(lambda: board_map.through(draft, visit.body.form.points))}


@router.add("POST", "/teach/{draft}/fits", ENGINEER, answers={204: "kept"})
async def fits(visit: Visit) -> None:
    """Say that each outline lies on its part."""

    def keep(draft: BoardDraft) -> None:
        draft.layout  # noqa: B018 - raises ConfigError for a recipe that cannot be used
        if not draft.is_found:
            raise ConfigError("the board was found in no picture; show two points of it, or search again")
        undo_stack.remember(draft, "Place confirmed")
        if any(line.startswith("held:") for line in draft.open_lines):  # decided by who looked at all pictures
            text = draft.recipe.read_text(encoding="utf-8")
            write_atomically(draft.recipe, [yaml_edit.with_value(text, ("held",), "true")])
        draft.say(draft.state.model_copy(update={"fits": True}))

    await idle(visit, keep)


class PackagesRequest(StrictModel):
    """The rows of the table of packages."""

    rows: Annotated[tuple[NamedPackage, ...], Field(max_length=5000)]


@router.add("POST", "/teach/{draft}/packages", ENGINEER, body=PackagesRequest, answers={202: "parts are cut out"})
async def name_packages(visit: Visit) -> Mapping[str, Any]:
    """Say what the parts of each package and value are called, and how large they are; they are cut out then."""
    await idle(visit, partial(package_table.name, said=visit.body.form.rows))
    await idle(visit, partial(_cut, visit))
    return {}


@router.add("POST", "/teach/{draft}/crops", ENGINEER, answers={202: "parts are cut out"})
async def cut(visit: Visit) -> Mapping[str, Any]:
    """Cut all parts out of all pictures, again if they were cut before; what a person said of them stays."""
    await idle(visit, partial(_cut, visit))
    return {}


def _cut(visit: Visit, draft: BoardDraft) -> None:
    undo_stack.remember(draft, "Parts cut out", made_in=[draft.photos])
    where = ("--images", f"{draft.name}/{BOARDS}", "--recipe", draft.named(draft.recipe))
    crop = ("coe-experts", "crop", draft.named(draft.rules), *where, *draft.placing, "--out", fresh(draft, CUT))
    take = ("coe.serve.teach.take_results", "crops", str(draft.root), draft.name)
    visit.gate.works.begin(draft, "The parts are cut out of the pictures", TeachStep.PICTURES, [crop, take])


class MarksRequest(StrictModel):
    """What photographs show, by their path: good, bad, or nothing said."""

    marks: Annotated[dict[str, Mark], Field(max_length=100_000)]


@router.add("POST", "/teach/{draft}/marks", ENGINEER, body=MarksRequest, answers={200: "where each lies now"})
async def mark(visit: Visit) -> Mapping[str, Any]:
    """Put photographs into the folders of what they show."""
    return {"paths": await idle(visit, partial(crop_gallery.mark, said=visit.body.form.marks))}


@router.add("POST", "/teach/{draft}/undo", ENGINEER, answers={200: "the step that was taken back"})
async def undo(visit: Visit) -> Mapping[str, Any]:
    """Take the last step back."""
    return {"undone": await idle(visit, undo_stack.take_back)}


@router.add("GET", "/teach/{draft}/work", ENGINEER)
async def get_work(visit: Visit) -> Mapping[str, Any]:
    """What runs for this board, or ran last, and the end of what it says."""
    draft = await visit.gate.keep(partial(draft_of, visit))
    found = await visit.gate.keep(partial(visit.gate.works.of, draft))
    work = existing(found, "work for this board", "begin a step")
    log = await visit.gate.keep(partial(teach_work.log_of, draft))
    facts = {name: getattr(work, name) for name in ("what", "state", "at", "doing")}
    return {**facts, "of": len(work.commands), "log": log}


@router.add("DELETE", "/teach/{draft}/work", ENGINEER, answers={204: "stopped"})
async def stop_work(visit: Visit) -> None:
    """End what runs for this board."""
    draft = await visit.gate.keep(partial(draft_of, visit))
    await visit.gate.keep(partial(visit.gate.works.stop, draft))


@router.add("GET", "/teach/{draft}/picture/{file}", ENGINEER, answers={200: "image"})
async def picture(visit: Visit) -> Response:
    """A picture of a whole board, made smaller for the page."""
    draft = await visit.gate.keep(partial(draft_of, visit))
    return await visit.gate.draw(lambda: _drawn(picture_of(visit, draft), _SIDE))


@router.add("GET", "/teach/{draft}/photo/{path:path}", ENGINEER, answers={200: "image"})
async def photo(visit: Visit) -> Response:
    """A photograph of a part."""

    def find() -> Path:
        draft, path = draft_of(visit), visit.name("path")
        place = (draft.photos / path).resolve()
        if not place.is_relative_to(draft.photos.resolve()) or place.suffix.lower() not in EXTENSIONS:
            raise not_found("such photograph", "load the page again")
        return place

    found = await visit.gate.keep(find)
    return await visit.gate.draw(lambda: _drawn(found, _CROP_SIDE))


def picture_of(visit: Visit, draft: BoardDraft) -> Path:
    """Return the picture of a whole board that the path names; raises Problem if there is none."""
    name = visit.name("file")
    found = next((path for path in draft.pictures if path.name == name), None)
    return existing(found, f"picture '{name}'", "load the page again")


def _drawn(path: Path, side: int) -> Response:
    if not path.is_file():
        raise not_found("such picture", "load the page again")
    try:
        pixels = ImageSource.of(path, None, None).decode()
    except ImageError as error:
        raise Problem(
            ProblemKind.INVALID, f"{path.name}: the picture {error}", "remove it, and send it again"
        ) from None
    scale = side / max(pixels.shape[:2])
    small = pixels if scale >= 1 else cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    file = io.BytesIO()
    image = Image.fromarray(np.asarray(small))
    if side == _CROP_SIDE:
        image.save(file, "PNG", compress_level=1)
    else:
        image.save(file, "JPEG", quality=_QUALITY)
    kind = "image/png" if side == _CROP_SIDE else "image/jpeg"
    return Response(file.getvalue(), media_type=kind, headers={"Cache-Control": "no-cache"})


async def _note(visit: Visit, draft: BoardDraft, action: str) -> None:
    now_us = visit.gate.now_us()
    await visit.gate.write(lambda connection: audit.append(connection, visit.caller, action, draft.name, now_us=now_us))
