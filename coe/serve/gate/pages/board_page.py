"""The page of a board: its calls with their pictures, and the way of each part through the experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from starlette.responses import Response

from coe.serve.database import blind, boards, findings, recipes, verifications
from coe.serve.database import views as pictures
from coe.serve.database.calls import Call
from coe.serve.database.verifications import Verification
from coe.serve.gate import faces
from coe.serve.gate.calls import picture_of
from coe.serve.gate.operations import Visit
from coe.serve.gate.pages.rendering import page
from coe.serve.gate.problems import not_found
from coe.serve.gate.request_data import expect_query, id_of


@dataclass(frozen=True, slots=True)
class Audited:
    """A blind audit with the newest word on it, None while it is open."""

    call: Call
    word: Verification | None


async def board(visit: Visit) -> Response:
    """Show a board with its findings."""
    expect_query(visit)

    def read(connection: Connection) -> dict[str, Any]:
        found = boards.get(connection, id_of(visit))
        if found is None:
            raise not_found(f"board {id_of(visit)}", "see the newest boards on the page of the line")
        of_board = faces.calls_of(connection, found.id, visit.key)
        names = {one.refdes for one in of_board}
        views = {one.id: one for one in pictures.of_board(connection, found.key)}
        # What an audit shows may come from another board.
        others = {one.view_id for one in of_board if one.view_id is not None} - views.keys()
        views |= {one.id: one for one in (pictures.get(connection, id) for id in others) if one is not None}
        sizes = {one.id: picture_of(one, views[one.view_id].pixels) for one in of_board if one.view_id in views}
        return {
            "board": faces.board_of(connection, found, visit.key),
            "audits": [] if faces.is_blind(visit.key) else _audits(connection, found.id),
            "recipe": recipes.get(connection, found.recipe_id),
            "calls": of_board,
            "good": [
                one for one in findings.unpack(boards.findings_of(connection, found.id)) if one.refdes not in names
            ],
            "views": views,
            "sizes": sizes,
            "whole": next((one for one in views.values() if one.name == found.request.get("whole")), None),
            "outlines": [_outline(one) for one in of_board if one.place and one.place["polygon"]],
        }

    return await page(visit, "board.j2", **await visit.gate.read(read))


def _outline(call: Call) -> dict[str, Any]:
    """Return where a call lies in the view of the whole board, for the script of the page."""
    return {"refdes": call.refdes, "look": call.verdict.value.lower(), "polygon": call.place["polygon"]}


def _audits(connection: Connection, board_id: int) -> list[Audited]:
    found = blind.of_boards(connection, [board_id])
    words = [verifications.get(connection, one.verification_id) if one.verification_id else None for one in found]
    return [Audited(call, word) for call, word in zip(found, words, strict=True)]
