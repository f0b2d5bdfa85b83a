"""The pages of boards: one with its calls and the way of each part, those that are found, and those at repair.

What a scanner types opens a board at once if it can mean one board alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.datastructures import URL
from starlette.responses import RedirectResponse, Response

from coe.core import Verdict
from coe.serve import request
from coe.serve.database import board_rows, call_rows, recipe_versions, repairs, verifications
from coe.serve.database import views as pictures
from coe.serve.database.tables import Board, Call, Repair, Verification
from coe.serve.enums import BoardState, RepairOutcome
from coe.serve.gate.board_routes import BoardsQuery, FoundBoards, board_named, search
from coe.serve.gate.call_routes import picture_of
from coe.serve.gate.operations import DIGITS, READ, VERIFY, Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown, page

router = PageRouter()
_LISTED = 50


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """What happened to a board, for its history; `call` is what it was about, `word` what a person said of it.

    `label` is what the person saw, if that is not the call's. `superseded` says that a later word corrects this one.
    """

    at_us: int
    what: str
    by: str = ""
    call: Call | None = None
    word: Verification | Repair | None = None
    label: str = ""
    superseded: bool = False


@router.page("/boards/{id:int}", "board.j2")
def board(visit: Visit, connection: Connection) -> Shown:
    """A board with its findings."""
    inspected = board_named(connection, id=visit.id)
    of_board = call_rows.of_board(connection, inspected.id)
    names = {call.refdes for call in of_board}
    recipe = recipe_versions.get(connection, inspected.recipe_id)
    words = verifications.of_calls(connection, [call.id for call in of_board])
    newest = {word.call_id: word for word in words}
    fixes = repairs.of_calls(connection, [call.id for call in of_board])
    return {
        "board": inspected,
        "answers": {call.id: newest[call.id] for call in of_board if call.id in newest},
        "history": _history(inspected, {call.id: call for call in of_board}, words, fixes),
        "repairs": {word.call_id: word for word in fixes},
        "recipe": recipe,
        "units": request.views_of(inspected, recipe, of_board),
        "calls": of_board,
        "good": [
            part
            for part in board_rows.unpack(board_rows.findings_of(connection, inspected.id))
            if part.refdes not in names
        ],
        **pictures_of(connection, inspected, of_board),
    }


def pictures_of(connection: Connection, board: Board, calls: Sequence[Call]) -> dict[str, Any]:
    """Return what pages draw of a board: its views, how its calls lie in them, and the outlines on the whole board."""
    views = {view.id: view for view in pictures.of_board(connection, board.key)}
    return {
        "views": views,
        "sizes": {call.id: picture_of(call, views[call.view_id].pixels) for call in calls if call.view_id in views},
        "whole": next((view for view in views.values() if view.name == board.request.get("whole")), None),
        "outlines": [
            {"refdes": call.refdes, "look": call.verdict.value.lower(), "polygon": call.place["polygon"]}
            for call in calls
            if call.place and call.place["polygon"]
        ],
    }


def _history(
    board: Board, calls: Mapping[int, Call], words: Sequence[Verification], fixes: Sequence[Repair]
) -> list[HistoryStep]:
    """Return what happened to a board in the order of time: its way, its calls, and every word on them."""
    way = [
        (board.accepted_us, "accepted", board.fed_by),
        (board.started_us, "inspection began", ""),
        (board.decided_us, "decided", ""),
    ]
    steps = [HistoryStep(at_us, what, by) for at_us, what, by in way if at_us is not None]
    steps += [HistoryStep(call.opened_us, "call", call.expert, call) for call in calls.values()]
    corrected = {word.supersedes for word in words}
    for word in words:
        what, call = "answer" if word.supersedes is None else "correction", calls[word.call_id]
        is_old = word.id in corrected
        steps.append(HistoryStep(word.verified_us, what, word.verified_by, call, word, word.label, is_old))
    if board.verified_us is not None:
        steps.append(HistoryStep(board.verified_us, "verified"))
    mended = {fix.supersedes for fix in fixes}
    for fix in fixes:
        call, is_old = calls[fix.call_id], fix.id in mended
        steps.append(HistoryStep(fix.repaired_us, "repair", fix.repaired_by, call, fix, superseded=is_old))
    # The sort is stable: at one moment a board is decided before its calls are there, and answered before verified.
    return sorted(steps, key=lambda step: step.at_us)


class FindQuery(BoardsQuery):
    """What the page searches: `scan` is a serial or, if no board has it, a key."""

    scan: Annotated[str, Field(description="what a person scanned or typed")] = ""
    limit: Annotated[int, Field(ge=1, le=_LISTED, description="how many"), DIGITS] = _LISTED

    @property
    def scanned(self) -> str:
        """The scan without what scanners send around it."""
        return self.scan.strip()


@router.add("GET", "/boards", READ, query=FindQuery)
async def boards(visit: Visit) -> Response:
    """Find boards; a scan that means one board alone opens it."""
    visit = _of_the_place(visit)
    query: FindQuery = visit.query
    if query.scanned and query.after is None:
        found = await visit.gate.read(partial(of_scan, visit))
        if len(found.boards) == 1:
            return RedirectResponse(f"/boards/{found.boards[0].id}", int(HTTPStatus.SEE_OTHER))
    return await page(visit, "boards.j2", partial(_shown, visit))


def _of_the_place(visit: Visit) -> Visit:
    """Return a visit whose times are as a person at the place means them: by the clock there."""
    local, given = visit.gate.config.local, visit.request.query_params
    times = {name: datetime.fromisoformat(given[name]) for name in ("since", "until") if given.get(name)}
    update = {name: local.of(moment).astimezone(UTC) for name, moment in times.items()}
    return replace(visit, query=visit.query.model_copy(update=update))


def of_scan(visit: Visit, connection: Connection) -> FoundBoards:
    """Return the boards that a scan means."""
    query: FindQuery = visit.query
    of_serial = search(connection, query.model_copy(update={"serial": query.scanned}))
    if of_serial.boards or query.after is not None:
        return of_serial
    return search(connection, query.model_copy(update={"key": query.scanned}))


def _shown(visit: Visit, connection: Connection) -> Shown:
    query: FindQuery = visit.query
    found = of_scan(visit, connection) if query.scanned else search(connection, query)
    given = {name: value for name, value in visit.request.query_params.items() if value and name != "after"}
    return {
        "query": query,
        "given": given,
        "found": found,
        "verdicts": list(Verdict),
        "states": list(BoardState),
        "following": URL("/boards").include_query_params(**given, after=found.next) if found.next is not None else None,
    }


@router.add("GET", "/repair", VERIFY, query=FindQuery)
async def waiting(visit: Visit) -> Response:
    """Boards with defects of which the repair station has not heard yet; a scan opens its newest board."""
    if scan := visit.query.scanned:
        found = await visit.gate.read(partial(of_scan, visit))
        where: object = URL("/boards").include_query_params(scan=scan)
        # The newest is the one in somebody's hands.
        where = f"/repair/{found.boards[0].id}" if found.boards else where
        return RedirectResponse(str(where), int(HTTPStatus.SEE_OTHER))
    return await page(visit, "repair.j2", _waiting)


def _waiting(connection: Connection) -> Shown:
    found = repairs.waiting(connection, limit=_LISTED + 1)
    return {"waiting": found[:_LISTED], "more": len(found) > _LISTED}


@router.page("/repair/{id:int}", "repair_board.j2", roles=VERIFY)
def repair_board(visit: Visit, connection: Connection) -> Shown:
    """The defects of a board, with what became of each."""
    inspected = board_named(connection, id=visit.id)
    defects = repairs.defects(connection, inspected.id)
    calls = [call for call, _ in defects]
    words = {word.call_id: word for word in verifications.of_calls(connection, [call.id for call in calls])}
    return {
        "board": inspected,
        "defects": defects,
        "answers": words,
        "open": call_rows.count_open_of(connection, inspected.id),
        **pictures_of(connection, inspected, calls),
        "outcomes": [
            (RepairOutcome.REPAIRED, "ok", "Repaired"),
            (RepairOutcome.SCRAPPED, "ng", "Scrapped"),
            (RepairOutcome.NO_DEFECT, "review", "No defect"),
        ],
    }
