"""What the last pages that teach a board send: learn, set a threshold, and the recipe for the line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from coe.board import calibration_file, rules
from coe.errors import ConfigError
from coe.serve.gate.operations import ENGINEER, OperationRouter, Visit
from coe.serve.gate.teach_files import draft_of, idle
from coe.serve.gate.teach_routes import picture_of
from coe.serve.recipe_content import BottomSide, RecipeContent, WholeBoard
from coe.serve.teach import undo_stack
from coe.serve.teach.take_results import CHOSEN, fresh
from coe.serve.teach.teach_draft import BoardDraft
from coe.serve.teach.teach_steps import TeachStep, missing
from coe.strict_model import Name, Share, StrictModel

router = OperationRouter()


class LearnRequest(StrictModel):
    """Whether pictures are kept back, to verify with and to test on: two fifths."""

    keep_back: bool = False


@router.add("POST", "/teach/{draft}/learn", ENGINEER, body=LearnRequest, answers={202: "experts are learned"})
async def learn(visit: Visit) -> Mapping[str, Any]:
    """Choose an expert for each component by its pictures, and judge all pictures with them."""

    def begin(draft: BoardDraft) -> None:
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

    await idle(visit, begin)
    return {}


class ThresholdRequest(StrictModel):
    """The threshold of an expert."""

    expert: Name
    threshold: Share


@router.add("POST", "/teach/{draft}/threshold", ENGINEER, body=ThresholdRequest, answers={202: "it is written"})
async def set_threshold(visit: Visit) -> Mapping[str, Any]:
    """Write the threshold of an expert into the calibration file; pictures are judged again."""
    form: ThresholdRequest = visit.body.form

    def begin(draft: BoardDraft) -> None:
        if form.expert not in rules.load(str(draft.rules)).experts:
            raise ConfigError(f"there is no expert '{form.expert}' any more; load the page again")
        undo_stack.remember(draft, f"Threshold of {form.expert}")
        asked = (form.expert, str(form.threshold))
        command = ("coe.serve.teach.teach_scores", str(draft.root), draft.name, _store(visit), *asked)
        visit.gate.works.begin(draft, f"The threshold of {form.expert} is written", TeachStep.THRESHOLD, [command])

    await idle(visit, begin)
    return {}


@router.add("POST", "/teach/{draft}/bounded", ENGINEER, answers={204: "kept"})
async def bounded(visit: Visit) -> None:
    """Say that the thresholds are right."""

    def keep(draft: BoardDraft) -> None:
        undo_stack.remember(draft, "Thresholds confirmed")
        draft.say(draft.state.model_copy(update={"bounded": True}))

    await idle(visit, keep)


def _store(visit: Visit) -> str:
    return str(visit.gate.config.line.store.absolute())


@router.add("GET", "/teach/{draft}/recipe", ENGINEER, answers={200: "the body of `POST /api/v1/recipes/{name}`"})
async def get_recipe(visit: Visit) -> Mapping[str, Any]:
    """The files of a board as a recipe of the service."""
    return await idle(visit, _content)


def _content(draft: BoardDraft) -> dict[str, Any]:
    state, file, bom = draft.state, draft.placements, draft.bom
    if file is None:
        raise ConfigError("there is no placement file yet; add it among the files")
    calibration = calibration_file.content(draft.rules) or b""
    bottom = BottomSide.model_validate({"x": state.bottom_x, "angle": state.bottom_angle}) if draft.bottom else None
    whole = WholeBoard(
        placements=_text(file.read_bytes(), file.name),
        dialect=state.dialect,
        units=state.units,
        recipe=draft.recipe.read_text(encoding="utf-8"),
        file=file.name,
        bottom=bottom,
        bom="" if bom is None else _text(bom.read_bytes(), bom.name),
    )
    content = RecipeContent(
        rules=draft.rules.read_text(encoding="utf-8"), calibration=calibration.decode(), whole=whole
    )
    content.board(draft.name)
    return content.model_dump(mode="json")


def _text(raw: bytes, name: str) -> str:
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ConfigError(f"{name} is not text in UTF-8; save it so, and send it again")


@router.add("GET", "/teach/{draft}/whole/{file}", ENGINEER, answers={200: "the bytes of the picture"})
async def whole_picture(visit: Visit) -> Response:
    """A picture of a whole board as it came, for the overlay of the recipe."""
    draft = await visit.gate.keep(partial(draft_of, visit))
    content = await visit.gate.keep(lambda: picture_of(visit, draft).read_bytes())
    return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"})
