"""Files of the draft of a board: pictures, the placement file, the BOM come in; pictures are shown."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.responses import Response

from coe.errors import ImageError
from coe.helpers.files import replacing, writing
from coe.helpers.strict_model import StrictModel
from coe.pictures.formats import EXTENSIONS, format_of, pixels_in
from coe.pictures.image_source import ImageSource
from coe.serve.gate.image_routes import shown
from coe.serve.gate.operations import ENGINEER, HandlerResult, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing, not_found
from coe.serve.gate.request_data import whole_body
from coe.serve.gate.upload_routes import check_pixels
from coe.serve.teach import table_text, undo_stack
from coe.serve.teach.teach_draft import BOARDS, BOM, FOLDER, PLACEMENTS, BoardDraft

_T = TypeVar("_T")
_W = TypeVar("_W", bound=Callable[[Visit, BoardDraft], HandlerResult])
MOST_PICTURES = 100
_NAME_BYTES = 160
_SIDE, _CROP_SIDE = 2000, 400
_ENDINGS = {"Jpeg": ".jpg", "Png": ".png", "Bmp": ".bmp", "Tiff": ".tif"}


def draft_of(visit: Visit) -> BoardDraft:
    """Return the draft that the path names; raises Problem if there is none."""
    draft = draft_named(visit, visit.name("draft"))
    if not draft.there:
        raise not_found(f"draft '{draft.name}'", "begin it on the page /teach")
    return draft


def draft_named(visit: Visit, name: str) -> BoardDraft:
    """Return the draft of a name, which need not be there.

    Raises ConfigError for a name that none can have, and Problem if its disk does not answer.
    """
    visit.gate.files.expect()
    return BoardDraft(visit.gate.config.data / FOLDER, name)


async def idle(visit: Visit, work: Callable[[BoardDraft], _T], *, decodes: bool = False) -> _T:
    """Change a draft for which no command runs, one change at a time; raises ConfigError while one does."""

    def change() -> _T:
        draft, works = draft_of(visit), visit.gate.works
        with works.changing(draft):
            works.expect_idle(draft)
            return work(draft)

    return await (visit.gate.draw if decodes else visit.gate.keep)(change)


class DraftRouter(OperationRouter):
    """Collects operations on the draft that the path names, for engineers; functions run on threads of files."""

    def change(self, method: str, path: str, **more: Any) -> Callable[[_W], _W]:
        """Serve what the function that this decorates returns after it has changed a draft, as `idle` has it done."""
        return self.serve(idle, method, path, ENGINEER, **more)

    def look(self, method: str, path: str, *, decodes: bool = False, **more: Any) -> Callable[[_W], _W]:
        """Serve what the function that this decorates returns of a draft; it `decodes` pictures, or it does not."""

        async def looked(visit: Visit, work: Callable[[BoardDraft], HandlerResult]) -> HandlerResult:
            return await (visit.gate.draw if decodes else visit.gate.keep)(lambda: work(draft_of(visit)))

        return self.serve(looked, method, path, ENGINEER, **more)


router = DraftRouter()


class FileQuery(StrictModel):
    """What a file is called where it comes from."""

    name: str = ""


@router.add(
    "PUT",
    "/teach/{draft}/files/{kind}",
    ENGINEER,
    takes="application/octet-stream",
    query=FileQuery,
    answers={201: "what it is called", 413: "too large", 415: "not a picture", 422: "a file that cannot be read"},
)
async def put_file(visit: Visit) -> Mapping[str, Any]:
    """Take a file in: a picture of a whole board, the placement file or the BOM."""
    kind, gate = visit.part("kind"), visit.gate
    if kind not in (BOARDS, PLACEMENTS, BOM):
        raise not_found("such kind of file", f"give {BOARDS}, {PLACEMENTS} or {BOM}")
    async with whole_body(visit, gate.config.limits.body) as content:
        name = _safe(visit.query.name)
        if kind == BOARDS:
            take = partial(_keep_picture, content=content, name=name, most_pixels=gate.config.limits.pixels)
            return {"file": await idle(visit, take, decodes=True)}
        async with gate.works.reading:
            text, notes = await table_text.taken(content, name, kind)
        name += ".csv" if table_text.is_packed(content) else ""
    return {"file": await idle(visit, partial(_keep_table, kind=kind, content=text, name=name, notes=notes))}


def _safe(name: str) -> str:
    """Return a name for a file that comes from anywhere: the last part of it, of letters, digits and plain signs."""
    last = unicodedata.normalize("NFC", re.split(r"[/\\]", name)[-1])
    plain = re.sub(r"[^\w.+-]+", "-", last).strip(".-")[-80:]
    return plain.encode("utf-8", "ignore")[-_NAME_BYTES:].decode("utf-8", "ignore").strip(".-") or "file"


def _keep_picture(draft: BoardDraft, content: bytes, name: str, most_pixels: int) -> str:
    check_pixels(pixels_in(io.BytesIO(content)), most_pixels)
    try:
        ImageSource.of(content, None, None).decode()
    except ImageError as error:
        raise Problem(ProblemKind.INVALID, f"{name}: the picture {error}", "send a whole picture of a board") from None
    if len(draft.pictures) >= MOST_PICTURES:
        raise Problem(ProblemKind.TOO_LARGE, f"there are {MOST_PICTURES} pictures already", "remove some")
    form = format_of(content[:8])
    if Path(name).suffix.lower() not in EXTENSIONS and form is not None:
        name += _ENDINGS[form.__name__]
    stem, ending = name.rpartition(".")[0], name.rpartition(".")[2]
    number, there = 1, {path.name.casefold(): path for path in draft.pictures}
    while name.casefold() in there and there[name.casefold()].read_bytes() != content:
        number += 1
        name = f"{stem}-{number}.{ending}"
    if name.casefold() not in there:
        undo_stack.remember(draft, f"{name} added", made_in=[draft.folder / BOARDS])
        _write(draft.folder / BOARDS / name, content)
    return name


def _keep_table(draft: BoardDraft, kind: str, content: str, name: str, notes: tuple[str, ...]) -> str:
    before = draft.placements if kind == PLACEMENTS else draft.bom
    undo_stack.remember(draft, f"{name} added", replaced=[before] if before else [], made_in=[draft.folder / kind])
    _write(draft.folder / kind / name, content.encode())
    draft.say(draft.state.model_copy(update={"read": False, "notes": {**draft.state.notes, kind: notes}}))
    return name


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), replacing(path) as file:
        file.write(content)


@router.change("DELETE", "/teach/{draft}/files/{kind}/{file}", answers={204: "removed"})
def delete_file(visit: Visit, draft: BoardDraft) -> None:
    """Take a file out again; undo brings it back."""
    kind, name = visit.part("kind"), visit.name("file")
    known = [*draft.pictures, draft.placements, draft.bom]
    path = draft.folder / kind / name
    if path not in known:
        raise not_found(f"file '{name}'", "load the page again")
    undo_stack.remember(draft, f"{name} removed", replaced=[path])
    state = draft.state
    if kind != BOARDS:  # a BOM says which parts there are
        draft.say(state.model_copy(update={"read": False}))
    elif name in state.shown:  # another picture may come by this name
        draft.say(state.model_copy(update={"shown": {of: at for of, at in state.shown.items() if of != name}}))


@router.look("GET", "/teach/{draft}/picture/{file}", decodes=True, answers={200: "image"})
def picture(visit: Visit, draft: BoardDraft) -> Response:
    """A picture of a whole board, made smaller for the page."""
    return _drawn(picture_of(visit, draft), _SIDE)


@router.look("GET", "/teach/{draft}/photo/{path:path}", decodes=True, answers={200: "image"})
def photo(visit: Visit, draft: BoardDraft) -> Response:
    """A photograph of a part."""
    path = (draft.photos / visit.name("path")).resolve()
    if not path.is_relative_to(draft.photos.resolve()) or path.suffix.lower() not in EXTENSIONS:
        raise not_found("such photograph", "load the page again")
    return _drawn(path, _CROP_SIDE)


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
    content, kind = shown(pixels, side)
    return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})


@router.look("GET", "/teach/{draft}/whole/{file}", answers={200: "the bytes of the picture"})
def whole_picture(visit: Visit, draft: BoardDraft) -> Response:
    """A picture of a whole board as it came, for the overlay of the recipe."""
    content = picture_of(visit, draft).read_bytes()
    return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"})
