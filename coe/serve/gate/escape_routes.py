"""`POST /api/v1/escapes`: a defect that a later test found on a board that had passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from coe.serve.database import audit, escape_rows
from coe.serve.database.escape_rows import Escape, NewEscape
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import VERIFY, OperationRouter, Visit
from coe.serve.text_checks import Note, Spelt, SpeltText, Text
from coe.strict_model import StrictModel

router = OperationRouter()
_ESCAPE = JsonForm("Escape", Escape, "refdes label found_at serial reported_us", escape="id", board="board_id")


class EscapeRequest(StrictModel):
    """A defect that a later test found; `found_at` is the test, as "ICT" or "customer"."""

    serial: Spelt
    refdes: SpeltText = ""
    component: Text = ""
    label: Text = ""
    found_at: Text = ""
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
    """Report a defect that a later test found; the same report again changes nothing.

    It counts for the newest decided board of the serial, or for the panel of the unit.
    """
    now_us = visit.gate.now_us()
    new = NewEscape(reported_us=now_us, reported_by=visit.caller, **visit.body.form.model_dump())
    added = escape_rows.report(connection, new)
    answer = _ESCAPE(added)
    if added.reported_us == now_us:
        about = {name: answer[name] for name in ("escape", "refdes", "label", "found_at")}
        audit.append(connection, visit.caller, "report escape", added.serial, now_us=now_us, detail=about)
    return answer
