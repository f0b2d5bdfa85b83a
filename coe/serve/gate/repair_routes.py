"""What later stations say: what became of a confirmed defect, and defects of boards that had passed."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.helpers.strict_model import StrictModel
from coe.serve.database import audit, repairs
from coe.serve.database.repairs import NothingToRepair
from coe.serve.database.tables import Board, Escape, NewEscape, NewRepair, Repair
from coe.serve.enums import RepairOutcome
from coe.serve.gate.call_routes import call_as_seen, tag_of
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import VERIFY, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.text_checks import Note, Spelt, SpeltText

router = OperationRouter()

_MOST = 500
_WORD = JsonForm(
    "Repair", Repair, "supersedes outcome note", repair="id", call="call_id", by="repaired_by", at="repaired_us"
)
_BOARD = JsonForm("BoardToRepair", Board, "key serial panel", {"defects": int}, board="id")
_ESCAPE = JsonForm("Escape", Escape, "refdes label found_at serial reported_us", escape="id", board="board_id")
_BOARDS = JsonForm("BoardsToRepair", more={"boards": _BOARD.many, "more": bool})


class RepairRequest(StrictModel):
    """What became of a defect."""

    outcome: RepairOutcome
    note: Note = ""


@router.write(
    "POST",
    "/api/v1/calls/{id:int}/repair",
    VERIFY,
    body=RepairRequest,
    answers={
        201: "the word was added",
        409: "nobody confirmed the defect, or calls of the board are open",
        412: "the call has changed",
        428: "If-Match is missing",
    },
    sends=_WORD,
    needs=("If-Match",),
    gives=("ETag",),
)
def post_repair(visit: Visit, connection: Connection) -> Response:
    """Report a repair.

    Its outcome is repaired, scrapped, or no defect, which makes it a false call. It supersedes earlier ones, which are
    kept.
    """
    call, form = call_as_seen(visit, connection), visit.body.form
    new = NewRepair(form.outcome, visit.gate.now_us(), visit.caller, form.note)
    try:
        added = repairs.record_repair(connection, call, new)
    except NothingToRepair as error:
        raise Problem(ProblemKind.CONFLICT, str(error), "see the board's page") from None
    word = {"outcome": added.outcome.value, "supersedes": added.supersedes}
    audit.append(connection, visit.caller, "repair", f"call {call.id}", now_us=added.repaired_us, detail=word)
    return JSONResponse(_WORD(added), int(HTTPStatus.CREATED), {"ETag": tag_of(connection, call.id)})


@router.read("/api/v1/repairs", VERIFY, answers={200: "boards, the newest first"}, sends=_BOARDS)
def get_waiting(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List boards that wait for repair. `more` if there are others."""
    found = repairs.waiting(connection, limit=_MOST + 1)
    boards = [_BOARD(board, defects=number) for board, number in found[:_MOST]]
    return _BOARDS(boards=boards, more=len(found) > _MOST)


class EscapeRequest(StrictModel):
    """A defect that a later test found; `found_at` is the test, as "ICT" or "customer"."""

    serial: Spelt
    refdes: SpeltText = ""
    component: SpeltText = ""
    label: SpeltText = ""
    found_at: SpeltText = ""
    note: Note = ""


@router.write(
    "POST",
    "/api/v1/escapes",
    VERIFY,
    body=EscapeRequest,
    sends=_ESCAPE,
    answers={201: "the report; `board` is null if no board of this serial was inspected here"},
)
def post_escape(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Report a defect that a later test found.

    It belongs to the newest decided board of the serial, or to the panel of the unit. The same report again changes
    nothing.
    """
    now_us = visit.gate.now_us()
    new = NewEscape(reported_us=now_us, reported_by=visit.caller, **visit.body.form.model_dump())
    added = repairs.report_escape(connection, new)
    answer = _ESCAPE(added)
    if added.reported_us == now_us:
        about = {name: answer[name] for name in ("escape", "refdes", "label", "found_at")}
        audit.append(connection, visit.caller, "report escape", added.serial, now_us=now_us, detail=about)
    return answer
