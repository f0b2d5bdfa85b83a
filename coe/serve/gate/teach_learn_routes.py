"""What the last pages that teach a board send: learn, set a threshold, and the recipe for the line."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from coe.board import calibration_file, rules
from coe.errors import ConfigError
from coe.serve.gate.operations import Visit
from coe.serve.gate.teach_files import DraftRouter
from coe.serve.gate.teach_routes import picture_of
from coe.serve.recipe_content import BottomSide, RecipeContent, WholeBoard
from coe.serve.teach import undo_stack
from coe.serve.teach.take_results import CHOSEN, fresh
from coe.serve.teach.teach_draft import BoardDraft
from coe.serve.teach.teach_steps import TeachStep, missing
from coe.strict_model import Name, Share, StrictModel

router = DraftRouter()


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


@router.look("GET", "/teach/{draft}/whole/{file}", answers={200: "the bytes of the picture"})
def whole_picture(visit: Visit, draft: BoardDraft) -> Response:
    """A picture of a whole board as it came, for the overlay of the recipe."""
    content = picture_of(visit, draft).read_bytes()
    return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"})
