"""What the pages that teach a board send: words on files, the commands that are run for each step, and the recipe."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field
from starlette.responses import Response

from coe.board import calibration_file, rules
from coe.errors import ConfigError, ImageError
from coe.helpers.files import replacing, writing
from coe.helpers.strict_model import Name, Share, StrictModel
from coe.pictures.formats import EXTENSIONS, format_of, pixels_in
from coe.pictures.image_source import ImageSource
from coe.serve.database import audit
from coe.serve.gate.image_routes import shown
from coe.serve.gate.operations import BYTES, ENGINEER, HandlerResult, OperationRouter, RowId, Visit, whole_body
from coe.serve.gate.problems import Problem, ProblemKind, existing, not_found
from coe.serve.gate.upload_routes import check_pixels
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.teach import board_map, package_table, table_text, teach_draft, teach_steps, teach_work
from coe.serve.teach.package_table import NamedPackage
from coe.serve.teach.teach_draft import BoardDraft, Reading, Word, text_of
from coe.serve.teach.teach_steps import Mark, TeachStep, missing

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
    """Return the draft of a name, there or not; raises ConfigError for a wrong name, Problem for a silent disk."""
    visit.gate.files.expect()
    return BoardDraft(visit.gate.config.data / teach_draft.FOLDER, name)


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


@router.add("PUT", "/teach/{draft}/files/{kind}", ENGINEER, takes=BYTES, query=FileQuery, status=201)
async def put_file(visit: Visit) -> Mapping[str, Any]:
    """Take a file in: a picture of a whole board, the placement file or the BOM."""
    kind, gate = visit.part("kind"), visit.gate
    kinds = (teach_draft.BOARDS, teach_draft.PLACEMENTS, teach_draft.BOM)
    if kind not in kinds:
        raise not_found("such kind of file", f"give one of {', '.join(kinds)}")
    async with whole_body(visit, gate.config.limits.body) as content:
        name = _safe(visit.query.name)
        if kind == teach_draft.BOARDS:
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
        raise Problem(
            ProblemKind.INVALID, f"{name}: the picture {error}", "send a complete picture of a board"
        ) from None
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
        teach_steps.remember(draft, f"{name} added", made_in=[draft.folder / teach_draft.BOARDS])
        _write(draft.folder / teach_draft.BOARDS / name, content)
    return name


def _keep_table(draft: BoardDraft, kind: str, content: str, name: str, notes: tuple[str, ...]) -> str:
    before = draft.placements if kind == teach_draft.PLACEMENTS else draft.bom
    teach_steps.remember(draft, f"{name} added", replaced=[before] if before else [], made_in=[draft.folder / kind])
    _write(draft.folder / kind / name, content.encode())
    draft.say(draft.state.model_copy(update={"read": False, "notes": {**draft.state.notes, kind: notes}}))
    return name


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), replacing(path) as file:
        file.write(content)


@router.change("DELETE", "/teach/{draft}/files/{kind}/{file}", status=204)
def delete_file(visit: Visit, draft: BoardDraft) -> None:
    """Take a file out again; undo brings it back."""
    kind, name = visit.part("kind"), visit.name("file")
    known = [*draft.pictures, draft.placements, draft.bom]
    path = draft.folder / kind / name
    if path not in known:
        raise not_found(f"file '{name}'", "load the page again")
    teach_steps.remember(draft, f"{name} removed", replaced=[path])
    state = draft.state
    if kind != teach_draft.BOARDS:  # a BOM says which parts there are
        draft.say(state.model_copy(update={"read": False}))
    elif name in state.shown:  # another picture may come by this name
        draft.say(state.model_copy(update={"shown": {of: at for of, at in state.shown.items() if of != name}}))


@router.look("GET", "/teach/{draft}/picture/{file}", decodes=True)
def picture(visit: Visit, draft: BoardDraft) -> Response:
    """A picture of a whole board, made smaller for the page."""
    return _drawn(picture_of(visit, draft), _SIDE)


@router.look("GET", "/teach/{draft}/photo/{path:path}", decodes=True)
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


@router.look("GET", "/teach/{draft}/whole/{file}")
def whole_picture(visit: Visit, draft: BoardDraft) -> Response:
    """A picture of a whole board as it came, for the overlay of the recipe."""
    content = picture_of(visit, draft).read_bytes()
    return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"})


Pixel = Annotated[float, Field(ge=-100_000, le=200_000, allow_inf_nan=False)]


class NewDraft(StrictModel):
    """The name of a new board."""

    name: str


@router.add("POST", "/teach", ENGINEER, body=NewDraft, status=201)
async def begin(visit: Visit) -> Mapping[str, Any]:
    """Begin a board."""

    def make() -> BoardDraft:
        draft = draft_named(visit, visit.body.form.name.strip())
        if draft.there:
            raise ConfigError(f"there is a draft '{draft.name}' already; continue it, or give another name")
        draft.folder.mkdir(parents=True)
        return draft

    draft = await visit.gate.keep(make)
    now_us = visit.gate.now_us()
    await visit.gate.write(
        lambda connection: audit.append(connection, visit.caller, "begin board", draft.name, now_us=now_us)
    )
    return {"draft": draft.name}


@router.change("POST", "/teach/{draft}/reading", body=Reading, status=202)
def read_so(visit: Visit, draft: BoardDraft) -> None:
    """Say how the placement file reads; `read` says that all is right, and the board is searched in the pictures."""
    said: Reading = visit.body.form
    teach_steps.remember(draft, "Placement file read")
    state = draft.state.model_copy(update={**said.model_dump(), "fits": False})
    if said.read:
        read = draft.read(state)
        board_map.planned_of(read, state)
        draft.keep(read)
        state = state.model_copy(update={"units": str(read.file.units)})
    draft.say(state)
    if said.read:
        _search(visit, draft, {})


class PointsRequest(StrictModel):
    """Where a person sees marks or parts in `picture`, in pixels, by name; without points the board is searched."""

    picture: Word = ""
    points: Annotated[dict[str, tuple[Pixel, Pixel]], Field(default_factory=dict, max_length=8)]


@router.change("POST", "/teach/{draft}/place", body=PointsRequest, status=202)
def place(visit: Visit, draft: BoardDraft) -> None:
    """Find the board in the pictures, near where a person shows it; of the recipe only the map changes.

    In the picture in which it was shown, it lies there, also if nothing is found in it.
    """
    form: PointsRequest = visit.body.form
    if form.points and form.picture not in [picture.name for picture in draft.pictures]:
        raise ConfigError(f"there is no picture '{form.picture}'; name the picture that shows the points")
    _search(visit, draft, form.points, form.picture)


def _search(visit: Visit, draft: BoardDraft, points: Mapping[str, tuple[float, float]], picture: str = "") -> None:
    if points:
        board_map.through(draft, points)
    teach_steps.remember(draft, "Board placed by hand" if points else "Board searched")
    state = draft.state
    state = state.model_copy(update={"shown": {**state.shown, picture: dict(points)} if points else {}})
    words = [word for pair in board_map.as_words(points) for word in ("--mark", pair)]
    words += ["--held"] if state.held else []
    words += ["--side", "bottom"] if state.side == "bottom" else []
    images = f"{draft.name}/{teach_draft.BOARDS}"
    new = (
        "coe-board",
        "new",
        draft.name,
        "--to",
        draft.fresh(teach_draft.FOUND),
        *draft.reading,
        "--images",
        images,
        *words,
    )
    take = ("coe.serve.teach.take_results", "map", str(draft.root), draft.name)
    draft.say(state.model_copy(update={"fits": False}))
    visit.gate.works.begin(draft, "Looking for the board in the pictures", TeachStep.PLACE, [new, take])


@router.look("GET", "/teach/{draft}/map/{file}", decodes=True)
def get_map(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """How the board lies in a picture, with the corners of all parts."""
    return board_map.shown(draft, picture_of(visit, draft))


@router.look("POST", "/teach/{draft}/map", body=PointsRequest)
def try_map(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """The map through points that a person shows; nothing is kept."""
    return {"matrix": board_map.matrix_of(board_map.through(draft, visit.body.form.points))}


@router.change("POST", "/teach/{draft}/fits", status=204)
def fits(visit: Visit, draft: BoardDraft) -> None:
    """Say that each outline lies on its part."""
    draft.layout  # noqa: B018 - raises ConfigError for a recipe that cannot be used
    if not draft.is_found:
        raise ConfigError("the board was found in no picture; click two points of it, or search again")
    teach_steps.remember(draft, "Place confirmed")
    state = draft.state  # who looked at all pictures has decided that a fixture holds it
    still = tuple(word for word in state.open if word != "held")
    draft.say(state.model_copy(update={"fits": True, "open": still}))


class PackagesRequest(StrictModel):
    """The rows of the table of packages."""

    rows: Annotated[tuple[NamedPackage, ...], Field(max_length=5000)]


@router.change("POST", "/teach/{draft}/packages", body=PackagesRequest, status=202)
def name_packages(visit: Visit, draft: BoardDraft) -> None:
    """Say what the parts of each package and value are called, and how large they are; they are cut out then."""
    package_table.name(draft, visit.body.form.rows)
    cut(visit, draft)


@router.change("POST", "/teach/{draft}/crops", status=202)
def cut(visit: Visit, draft: BoardDraft) -> None:
    """Cut all parts out of all pictures, again if they were cut before; what a person said of them stays."""
    teach_steps.remember(draft, "Parts cut out", made_in=[draft.photos])
    where = ("--images", f"{draft.name}/{teach_draft.BOARDS}", "--recipe", draft.named(draft.recipe))
    crop = ("coe-experts", "crop", draft.named(draft.rules), *where, "--out", draft.fresh(teach_draft.CUT))
    take = ("coe.serve.teach.take_results", "crops", str(draft.root), draft.name)
    visit.gate.works.begin(draft, "Cutting the parts out of the pictures", TeachStep.PICTURES, [crop, take])


class MarksRequest(StrictModel):
    """What photographs show, by their path: good, bad, or nothing said."""

    marks: Annotated[dict[str, Mark], Field(max_length=100_000)]


@router.change("POST", "/teach/{draft}/marks", body=MarksRequest)
def mark(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """Put photographs into the folders of what they show."""
    paths = teach_steps.mark(draft, visit.body.form.marks)
    last = teach_steps.last_step(draft)
    return {"paths": paths, "step": last.number if last else 0}


class UndoQuery(StrictModel):
    """The step to take back, as its page showed it: another person's is not; 0: the last, whatever it is."""

    step: RowId = 0


@router.change("POST", "/teach/{draft}/undo", query=UndoQuery)
def undo(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """Take the last step back."""
    return {"undone": teach_steps.take_back(draft, visit.query.step)}


@router.look("GET", "/teach/{draft}/work")
def get_work(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """What runs for this board, or ran last, and the end of what it says."""
    work = existing(visit.gate.works.of(draft), "work for this board", "begin a step")
    facts = {name: getattr(work, name) for name in ("what", "state", "at", "doing")}
    return {**facts, "of": len(work.commands), "log": teach_work.log_of(draft)}


@router.look("DELETE", "/teach/{draft}/work", status=204)
def stop_work(visit: Visit, draft: BoardDraft) -> None:
    """End what runs for this board."""
    visit.gate.works.stop(draft)


class LearnRequest(StrictModel):
    """Whether pictures are kept back, to verify with and to test on: two fifths."""

    keep_back: bool = False


@router.change("POST", "/teach/{draft}/learn", body=LearnRequest, status=202)
def learn(visit: Visit, draft: BoardDraft) -> None:
    """Choose an expert for each component by its pictures, and judge all pictures with them."""
    if told := missing(draft):
        raise ConfigError("; ".join(told))
    teach_steps.remember(draft, "Learned")
    if not visit.body.form.keep_back:
        draft.split.unlink(missing_ok=True)  # it would keep pictures back
    draft.forget_scores()  # those of the experts before, if it is ended halfway
    draft.say(draft.state.model_copy(update={"bounded": False}))
    store, photos = _store(visit), draft.named(draft.photos)
    board = f"{draft.fresh(teach_draft.CHOSEN)}/{draft.name}.yaml"
    split = [("coe-experts", "split", photos)] if visit.body.form.keep_back else []
    choose = ("coe-experts", "choose", board, "--images", photos, "--no-prepare", "--store", store)
    take = ("coe.serve.teach.take_results", "chosen", str(draft.root), draft.name, store)
    scores = ("coe.serve.teach.take_results", "scores", str(draft.root), draft.name, store)
    what = "Experts are learned, and compared"
    visit.gate.works.begin(draft, what, TeachStep.THRESHOLD, [*split, choose, take, scores])


class ThresholdRequest(StrictModel):
    """The threshold of an expert."""

    expert: Name
    threshold: Share


@router.change("POST", "/teach/{draft}/threshold", body=ThresholdRequest, status=202)
def set_threshold(visit: Visit, draft: BoardDraft) -> None:
    """Write the threshold of an expert into the calibration file; pictures are judged again."""
    form: ThresholdRequest = visit.body.form
    if form.expert not in rules.load(str(draft.rules)).experts:
        raise ConfigError(f"there is no expert '{form.expert}' any more; load the page again")
    teach_steps.remember(draft, f"Threshold of {form.expert}")
    asked = (form.expert, str(form.threshold))
    command = ("coe.serve.teach.take_results", "scores", str(draft.root), draft.name, _store(visit), *asked)
    visit.gate.works.begin(draft, f"The threshold of {form.expert} is written", TeachStep.THRESHOLD, [command])


@router.change("POST", "/teach/{draft}/bounded", status=204)
def bounded(visit: Visit, draft: BoardDraft) -> None:
    """Say that the thresholds are right."""
    teach_steps.remember(draft, "Thresholds confirmed")
    draft.say(draft.state.model_copy(update={"bounded": True}))


def _store(visit: Visit) -> str:
    return str(visit.gate.config.line.store.absolute())


@router.change("GET", "/teach/{draft}/recipe")
def get_recipe(visit: Visit, draft: BoardDraft) -> dict[str, Any]:
    """The files of a board as a recipe of the service."""
    calibration, state = calibration_file.content(draft.rules) or b"", draft.state
    whole = WholeBoard(parts=draft.parts.read_text(encoding="utf-8"), recipe=text_of(state.recipe or {}))
    content = RecipeContent(rules=text_of(state.rules or {}), calibration=calibration.decode(), whole=whole)
    content.board(draft.name)
    return content.model_dump(mode="json")
