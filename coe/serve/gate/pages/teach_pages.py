"""The pages that teach a board: a list of drafts, and one page for each step of a draft."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.responses import Response

from coe.board import calibration_file, rules
from coe.bring.parts.vocabulary import Units
from coe.errors import CoeError
from coe.serve.gate.operations import ENGINEER, Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown, page
from coe.serve.gate.problems import not_found
from coe.serve.gate.teach_routes import draft_of
from coe.serve.teach import board_map, teach_steps, teach_work
from coe.serve.teach.package_table import rows_of
from coe.serve.teach.teach_draft import FOLDER, SCORES, BoardDraft, drafts
from coe.serve.teach.teach_steps import TeachStep, crops, current, missing, states

router = PageRouter()
_FEW, _MANY = 6, 20


def _page(path: str, template: str) -> Callable[[Callable[[Visit], Shown]], Callable[[Visit], Shown]]:
    """Serve a page of files, which are read on a thread of files: those of the database stay free for other pages."""

    async def run(visit: Visit, look: Callable[[], Shown]) -> Response:
        shown = await visit.gate.keep(look)
        return await page(visit, template, lambda connection: shown)

    return router.serve(run, "GET", path, ENGINEER)


@_page("/teach", "teach_list.j2")
def teach(visit: Visit) -> Shown:
    """All boards that are being taught."""
    root = visit.gate.config.data / FOLDER
    return {"drafts": [(draft, current(draft)) for draft in drafts(root)], "folder": str(root)}


@_page("/teach/{draft}", "teach_step.j2")
def teach_on(visit: Visit) -> Shown:
    """A draft at the step that comes next."""
    draft = draft_of(visit)
    return _shown(visit, draft, current(draft))


@_page("/teach/{draft}/{step}", "teach_step.j2")
def teach_step(visit: Visit) -> Shown:
    """A step of a draft."""
    word = visit.part("step")
    if word not in set(TeachStep):
        raise not_found(f"step '{word[:40]}'", f"known: {', '.join(TeachStep)}")
    return _shown(visit, draft_of(visit), TeachStep(word))


def _shown(visit: Visit, draft: BoardDraft, step: TeachStep) -> Shown:
    work = visit.gate.works.of(draft)
    shown: dict[str, Any] = {
        "draft": draft,
        "step": step,
        "steps": [],
        "undo": teach_steps.last_step(draft),
        "work": work,
        "log": teach_work.log_of(draft) if work is not None else "",
        "fault": "",
        "whole": True,
    }
    try:
        shown["steps"] = states(draft)
        if work is not None and work.state == "running":
            return {**shown, "whole": False}
        if not next(one.can for one in shown["steps"] if one.step is step):
            failed = work is not None and work.state == "failed" and work.then == step
            later = "This step comes later: first finish the steps before it."
            return {**shown, "fault": "" if failed else later, "whole": False}
        return {**shown, **_OF_STEP[step](draft)}
    except CoeError as error:
        return {**shown, "fault": _brief(draft, error), "whole": False}


def _brief(draft: BoardDraft, error: CoeError) -> str:
    """Return an error as people read it, who know the names of their files, and not where the service keeps them."""
    return re.sub(rf"{re.escape(str(draft.root))}[/\\](?:\S*[/\\])?", "", str(error))


def _files(draft: BoardDraft) -> Shown:
    sizes = [(path.name, path.stat().st_size) for path in draft.pictures]
    return {"pictures": sizes, "tables": {"placements": _named(draft.placements), "bom": _named(draft.bom)}}


def _named(path: Path | None) -> str:
    return "" if path is None else path.name


def _reading(draft: BoardDraft) -> Shown:
    state = draft.state
    form = {"state": state, "units": list(Units)}
    try:
        read = draft.read()
    except CoeError as error:
        return {**form, "read": None, "fault": _brief(draft, error)}
    places = read.file.placements
    extent = {axis: [getattr(place, f"{axis}_mm") for place in places] for axis in ("x", "y")}
    sides = {side: sum(place.side == side for place in places) for side in ("top", "bottom")}
    try:
        drawn = board_map.planned_of(read, state)
        marks, left_out, fault = [mark.name for mark in drawn.marks], drawn.left_out, ""
    except CoeError as error:
        marks, left_out, fault = [], (), str(error)
    return {
        **form,
        "read": read,
        "first": places[:_FEW],
        "extent": {axis: (min(values), max(values)) for axis, values in extent.items()},
        "sides": sides,
        "marks": marks,
        "no_parts": [name for name in left_out if name not in marks],
        "notes": [note for listed in state.notes.values() for note in listed] + list(read.notes),
        "fault": fault,
    }


def _place(draft: BoardDraft) -> Shown:
    return {"pictures": [path.name for path in draft.pictures], "has_recipe": draft.recipe.is_file()}


def _packages(draft: BoardDraft) -> Shown:
    rows = rows_of(draft)
    return {"rows": rows, "open": sum(row.is_guess for row in rows)}


def _pictures(draft: BoardDraft) -> Shown:
    found = crops(draft)
    every = [crop for listed in found.values() for crop in listed]
    counts = {mark: sum(crop.mark == mark for crop in every) for mark in ("good", "bad", "")}
    cut = {crop.name.partition("-")[2] for crop in every}
    uncut = [path.name for path in draft.pictures if path.stem not in cut]
    uncut += sorted({site.component for site in draft.layout.sites} - set(found))
    return {"crops": found, "counts": counts, "uncut": uncut}


def _learn(draft: BoardDraft) -> Shown:
    board, found = rules.load(str(draft.rules)), crops(draft)
    counts = {name: Counter(crop.mark for crop in found.get(name, ())) for name in board.components}
    rows = [
        (name, counts[name]["good"], counts[name]["bad"], one.root.expert) for name, one in board.components.items()
    ]
    keeps_back = draft.split.is_file() or min((good for _, good, _, _ in rows), default=0) >= _MANY
    learned = (draft.folder / SCORES).is_file()
    return {"rows": rows, "open": missing(draft), "keeps_back": keeps_back, "learned": learned}


def _threshold(draft: BoardDraft) -> Shown:
    return {"scores": json.loads((draft.folder / SCORES).read_bytes())}


def _activate(draft: BoardDraft) -> Shown:
    board, sites = rules.load(str(draft.rules)), draft.layout.sites
    return {
        "sites": len(sites),
        "kinds": len({site.component for site in sites}),
        "experts": len(board.experts),
        "calibrated": calibration_file.path_for(draft.rules).is_file(),
        "picture": draft.pictures[0].name if draft.pictures else "",
    }


_OF_STEP: dict[TeachStep, Callable[[BoardDraft], Shown]] = {
    TeachStep.FILES: _files,
    TeachStep.READING: _reading,
    TeachStep.PLACE: _place,
    TeachStep.PACKAGES: _packages,
    TeachStep.PICTURES: _pictures,
    TeachStep.LEARN: _learn,
    TeachStep.THRESHOLD: _threshold,
    TeachStep.ACTIVATE: _activate,
}
