"""`POST /api/v1/escapes`: a defect that a later test found on a board that had passed."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.serve.database import audit, escape_rows
from coe.serve.database.escape_rows import NewEscape
from coe.serve.gate.operation_routes import VERIFY, Operation, Visit
from coe.serve.gate.request_data import expect_query, json_body
from coe.serve.moments import iso
from coe.serve.texts import Note, Spelt, SpeltText, Text
from coe.strict_model import StrictModel


class EscapeRequest(StrictModel):
    """A defect that a later test found; `found_at` is the test, as "ICT" or "customer"."""

    serial: Spelt
    refdes: SpeltText = ""
    component: Text = ""
    label: Text = ""
    found_at: Text = ""
    note: Note = ""


async def post_escape(visit: Visit) -> Response:
    """Add a report; one that is there already is answered as it was."""
    expect_query(visit)
    form = (await json_body(visit, EscapeRequest)).form
    now_us = visit.gate.now_us()
    new = NewEscape(reported_us=now_us, reported_by=visit.caller, **form.model_dump())

    def add(connection: Connection) -> dict[str, Any]:
        added = escape_rows.report(connection, new)
        about = {"escape": added.id, "refdes": added.refdes, "label": added.label, "found_at": added.found_at}
        if added.reported_us == now_us:
            audit.append(connection, visit.caller, "report escape", added.serial, now_us=now_us, detail=about)
        return {**about, "board": added.board_id, "serial": added.serial, "reported": iso(added.reported_us)}

    return JSONResponse(await visit.gate.write(add), int(HTTPStatus.CREATED))


OPERATIONS = [
    Operation(
        "POST",
        "/api/v1/escapes",
        "Report a defect that a later test found; it counts for the newest decided board of the serial, or for the "
        "panel of the unit. The same report again changes nothing.",
        post_escape,
        VERIFY,
        body=EscapeRequest,
        answers={201: "the report; `board` is null if no board of this serial was inspected here"},
    )
]
