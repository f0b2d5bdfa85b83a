"""What the pages that teach a board send: words on files, the commands that are run for each step, and the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from coe.board import calibration_file, rules
from coe.errors import ConfigError
from coe.helpers.strict_model import Name, Share, StrictModel
from coe.serve.database import audit
from coe.serve.gate.operations import ENGINEER, RowId, Visit
from coe.serve.gate.problems import existing
from coe.serve.gate.teach_files import DraftRouter, draft_named, picture_of
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.teach import board_map, crop_gallery, package_table, teach_work, undo_stack
from coe.serve.teach.crop_gallery import Mark
from coe.serve.teach.package_table import NamedPackage
from coe.serve.teach.take_results import CHOSEN, CUT, FOUND, fresh
from coe.serve.teach.teach_draft import BOARDS, BoardDraft, Reading, Word, text_of
from coe.serve.teach.teach_steps import TeachStep, missing

router = DraftRouter()
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
    now_us = visit.gate.now_us()
    await visit.gate.write(
        lambda connection: audit.append(connection, visit.caller, "begin board", draft.name, now_us=now_us)
    )
    return {"draft": draft.name}


@router.change("POST", "/teach/{draft}/reading", body=Reading, answers={202: "the board is searched"})
def read_so(visit: Visit, draft: BoardDraft) -> None:
    """Say how the placement file reads; `read` says that all is right, and the board is searched in the pictures."""
    said: Reading = visit.body.form
    undo_stack.remember(draft, "Placement file read")
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


@router.change("POST", "/teach/{draft}/place", body=PointsRequest, answers={202: "the board is searched"})
def place(visit: Visit, draft: BoardDraft) -> None:
    """Find the board in the pictures, near where a person shows it; of the recipe only the map changes.

    In the picture in which it was shown, it lies there, also if nothing is found in it.
    """
    form: PointsRequest = visit.body.form
    if form.points and form.picture not in [picture.name for picture in draft.pictures]:
        raise ConfigError(f"there is no picture '{form.picture}'; name the one in which the points lie")
    _search(visit, draft, form.points, form.picture)


def _search(visit: Visit, draft: BoardDraft, points: Mapping[str, tuple[float, float]], picture: str = "") -> None:
    if points:
        board_map.through(draft, points)
    undo_stack.remember(draft, "Board placed by hand" if points else "Board searched")
    state = draft.state
    state = state.model_copy(update={"shown": {**state.shown, picture: dict(points)} if points else {}})
    words = [word for pair in board_map.as_words(points) for word in ("--mark", pair)]
    words += ["--held"] if state.held else []
    words += ["--side", "bottom"] if state.side == "bottom" else []
    images = f"{draft.name}/{BOARDS}"
    new = ("coe-board", "new", draft.name, "--to", fresh(draft, FOUND), *draft.reading, "--images", images, *words)
    take = ("coe.serve.teach.take_results", "map", str(draft.root), draft.name)
    draft.say(state.model_copy(update={"fits": False}))
    visit.gate.works.begin(draft, "The board is looked for in the pictures", TeachStep.PLACE, [new, take])


@router.look("GET", "/teach/{draft}/map/{file}", decodes=True)
def get_map(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """How the board lies in a picture, with the corners of all parts."""
    return board_map.shown(draft, picture_of(visit, draft))


@router.look("POST", "/teach/{draft}/map", body=PointsRequest)
def try_map(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """The map through points that a person shows; nothing is kept."""
    return {"matrix": board_map.matrix_of(board_map.through(draft, visit.body.form.points))}


@router.change("POST", "/teach/{draft}/fits", answers={204: "kept"})
def fits(visit: Visit, draft: BoardDraft) -> None:
    """Say that each outline lies on its part."""
    draft.layout  # noqa: B018 - raises ConfigError for a recipe that cannot be used
    if not draft.is_found:
        raise ConfigError("the board was found in no picture; show two points of it, or search again")
    undo_stack.remember(draft, "Place confirmed")
    state = draft.state  # who looked at all pictures has decided that a fixture holds it
    still = tuple(word for word in state.open if word != "held")
    draft.say(state.model_copy(update={"fits": True, "open": still}))


class PackagesRequest(StrictModel):
    """The rows of the table of packages."""

    rows: Annotated[tuple[NamedPackage, ...], Field(max_length=5000)]


@router.change("POST", "/teach/{draft}/packages", body=PackagesRequest, answers={202: "parts are cut out"})
def name_packages(visit: Visit, draft: BoardDraft) -> None:
    """Say what the parts of each package and value are called, and how large they are; they are cut out then."""
    package_table.name(draft, visit.body.form.rows)
    cut(visit, draft)


@router.change("POST", "/teach/{draft}/crops", answers={202: "parts are cut out"})
def cut(visit: Visit, draft: BoardDraft) -> None:
    """Cut all parts out of all pictures, again if they were cut before; what a person said of them stays."""
    undo_stack.remember(draft, "Parts cut out", made_in=[draft.photos])
    where = ("--images", f"{draft.name}/{BOARDS}", "--recipe", draft.named(draft.recipe))
    crop = ("coe-experts", "crop", draft.named(draft.rules), *where, "--out", fresh(draft, CUT))
    take = ("coe.serve.teach.take_results", "crops", str(draft.root), draft.name)
    visit.gate.works.begin(draft, "The parts are cut out of the pictures", TeachStep.PICTURES, [crop, take])


class MarksRequest(StrictModel):
    """What photographs show, by their path: good, bad, or nothing said."""

    marks: Annotated[dict[str, Mark], Field(max_length=100_000)]


@router.change("POST", "/teach/{draft}/marks", body=MarksRequest, answers={200: "where each lies now"})
def mark(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """Put photographs into the folders of what they show."""
    paths = crop_gallery.mark(draft, visit.body.form.marks)
    last = undo_stack.last(draft)
    return {"paths": paths, "step": last.number if last else 0}


class UndoQuery(StrictModel):
    """The step to take back, as its page showed it: another person's is not; 0: the last, whatever it is."""

    step: RowId = 0


@router.change("POST", "/teach/{draft}/undo", query=UndoQuery, answers={200: "the step that was taken back"})
def undo(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """Take the last step back."""
    return {"undone": undo_stack.take_back(draft, visit.query.step)}


@router.look("GET", "/teach/{draft}/work")
def get_work(visit: Visit, draft: BoardDraft) -> Mapping[str, Any]:
    """What runs for this board, or ran last, and the end of what it says."""
    work = existing(visit.gate.works.of(draft), "work for this board", "begin a step")
    facts = {name: getattr(work, name) for name in ("what", "state", "at", "doing")}
    return {**facts, "of": len(work.commands), "log": teach_work.log_of(draft)}


@router.look("DELETE", "/teach/{draft}/work", answers={204: "stopped"})
def stop_work(visit: Visit, draft: BoardDraft) -> None:
    """End what runs for this board."""
    visit.gate.works.stop(draft)


class LearnRequest(StrictModel):
    """Whether pictures are kept back, to verify with and to test on: two fifths."""

    keep_back: bool = False


@router.change("POST", "/teach/{draft}/learn", body=LearnRequest, answers={202: "experts are learned"})
def learn(visit: Visit, draft: BoardDraft) -> None:
    """Choose an expert for each component by its pictures, and judge all pictures with them."""
    if told := missing(draft):
        raise ConfigError("; ".join(told))
    undo_stack.remember(draft, "Learned")
    if not visit.body.form.keep_back:
        draft.split.unlink(missing_ok=True)  # it would keep pictures back
    draft.forget_scores()  # those of the experts before, if it is ended halfway
    draft.say(draft.state.model_copy(update={"bounded": False}))
    store, photos = _store(visit), draft.named(draft.photos)
    board = f"{fresh(draft, CHOSEN)}/{draft.name}.yaml"
    split = [("coe-experts", "split", photos)] if visit.body.form.keep_back else []
    choose = ("coe-experts", "choose", board, "--images", photos, "--no-prepare", "--store", store)
    take = ("coe.serve.teach.take_results", "chosen", str(draft.root), draft.name, store)
    scores = ("coe.serve.teach.teach_scores", str(draft.root), draft.name, store)
    what = "Experts are learned, and compared"
    visit.gate.works.begin(draft, what, TeachStep.THRESHOLD, [*split, choose, take, scores])


class ThresholdRequest(StrictModel):
    """The threshold of an expert."""

    expert: Name
    threshold: Share


@router.change("POST", "/teach/{draft}/threshold", body=ThresholdRequest, answers={202: "it is written"})
def set_threshold(visit: Visit, draft: BoardDraft) -> None:
    """Write the threshold of an expert into the calibration file; pictures are judged again."""
    form: ThresholdRequest = visit.body.form
    if form.expert not in rules.load(str(draft.rules)).experts:
        raise ConfigError(f"there is no expert '{form.expert}' any more; load the page again")
    undo_stack.remember(draft, f"Threshold of {form.expert}")
    asked = (form.expert, str(form.threshold))
    command = ("coe.serve.teach.teach_scores", str(draft.root), draft.name, _store(visit), *asked)
    visit.gate.works.begin(draft, f"The threshold of {form.expert} is written", TeachStep.THRESHOLD, [command])


@router.change("POST", "/teach/{draft}/bounded", answers={204: "kept"})
def bounded(visit: Visit, draft: BoardDraft) -> None:
    """Say that the thresholds are right."""
    undo_stack.remember(draft, "Thresholds confirmed")
    draft.say(draft.state.model_copy(update={"bounded": True}))


def _store(visit: Visit) -> str:
    return str(visit.gate.config.line.store.absolute())


@router.change("GET", "/teach/{draft}/recipe", answers={200: "the body of `POST /api/v1/recipes/{name}`"})
def get_recipe(visit: Visit, draft: BoardDraft) -> dict[str, Any]:
    """The files of a board as a recipe of the service."""
    calibration, state = calibration_file.content(draft.rules) or b"", draft.state
    whole = WholeBoard(parts=draft.parts.read_text(encoding="utf-8"), recipe=text_of(state.recipe or {}))
    content = RecipeContent(rules=text_of(state.rules or {}), calibration=calibration.decode(), whole=whole)
    content.board(draft.name)
    return content.model_dump(mode="json")
