"""The repair station: boards that wait, and the defects of the board in one's hands, with what became of each."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus

from sqlalchemy import Connection
from starlette.datastructures import URL
from starlette.responses import RedirectResponse, Response

from coe.serve.database import blind, repairs, verifications
from coe.serve.enums import RepairOutcome
from coe.serve.gate import role_views
from coe.serve.gate.board_routes import board_named
from coe.serve.gate.operations import VERIFY, Visit
from coe.serve.gate.pages.board_page import pictures_of
from coe.serve.gate.pages.boards_page import FindQuery, of_scan
from coe.serve.gate.pages.rendering import PageRouter, Shown, page

router = PageRouter()
_LISTED = 50


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
def board(visit: Visit, connection: Connection) -> Shown:
    """The defects of a board."""
    inspected = board_named(connection, id=visit.id)
    found = repairs.defects(connection, inspected.id)
    # To an operator a part in which an audit found a defect is a call like the others.
    defects = [(blind.masked(call) if role_views.is_blind(visit.key) else call, word) for call, word in found]
    calls = [call for call, _ in defects]
    words = {word.call_id: word for word in verifications.of_calls(connection, [call.id for call in calls])}
    return {
        "board": inspected,
        "defects": defects,
        "answers": words,
        "open": role_views.count_open_of(connection, inspected.id, visit.key),
        **pictures_of(connection, inspected, calls),
        "outcomes": [
            (RepairOutcome.REPAIRED, "ok", "Repaired"),
            (RepairOutcome.SCRAPPED, "ng", "Scrapped"),
            (RepairOutcome.NO_DEFECT, "review", "No defect"),
        ],
    }
