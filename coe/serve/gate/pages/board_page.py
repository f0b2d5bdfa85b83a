"""The page of a board: its calls with their pictures, and the way of each part through the experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from coe.serve.database import blind, board_rows, findings, recipe_versions, verifications
from coe.serve.database import views as pictures
from coe.serve.database.call_rows import Call
from coe.serve.database.verifications import Verification
from coe.serve.gate import role_views
from coe.serve.gate.call_routes import picture_of
from coe.serve.gate.operations import Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown
from coe.serve.gate.problems import not_found

router = PageRouter()


@dataclass(frozen=True, slots=True)
class Audited:
    """A blind audit with the newest word on it, None while it is open."""

    call: Call
    word: Verification | None


@router.page("/boards/{id:int}", "board.j2")
def board(visit: Visit, connection: Connection) -> Shown:
    """A board with its findings."""
    inspected = board_rows.get(connection, visit.id)
    if inspected is None:
        raise not_found(f"board {visit.id}", "see the newest boards on the page of the line")
    of_board = role_views.calls_of(connection, inspected.id, visit.key)
    names = {call.refdes for call in of_board}
    views = {view.id: view for view in pictures.of_board(connection, inspected.key)}
    # What an audit shows may come from another board.
    others = {call.view_id for call in of_board if call.view_id is not None} - views.keys()
    views |= {view.id: view for view in (pictures.get(connection, id) for id in others) if view is not None}
    sizes = {call.id: picture_of(call, views[call.view_id].pixels) for call in of_board if call.view_id in views}
    return {
        "board": role_views.board_of(connection, inspected, visit.key),
        "audits": [] if role_views.is_blind(visit.key) else _audits(connection, inspected.id),
        "recipe": recipe_versions.get(connection, inspected.recipe_id),
        "calls": of_board,
        "good": [
            part
            for part in findings.unpack(board_rows.findings_of(connection, inspected.id))
            if part.refdes not in names
        ],
        "views": views,
        "sizes": sizes,
        "whole": next((view for view in views.values() if view.name == inspected.request.get("whole")), None),
        "outlines": [_outline(call) for call in of_board if call.place and call.place["polygon"]],
    }


def _outline(call: Call) -> dict[str, Any]:
    """Return where a call lies in the view of the whole board, for the script of the page."""
    return {"refdes": call.refdes, "look": call.verdict.value.lower(), "polygon": call.place["polygon"]}


def _audits(connection: Connection, board_id: int) -> list[Audited]:
    audits = blind.of_boards(connection, [board_id])
    words = [
        verifications.get(connection, audit.verification_id) if audit.verification_id else None for audit in audits
    ]
    return [Audited(call, word) for call, word in zip(audits, words, strict=True)]
