"""The page of a board: its calls with their pictures, and the way of each part through the experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from coe.serve.database import blind, board_rows, findings, recipe_versions, repairs, verifications
from coe.serve.database import views as pictures
from coe.serve.database.board_rows import Board
from coe.serve.database.call_rows import Call
from coe.serve.database.repairs import Repair
from coe.serve.database.verifications import Verification
from coe.serve.gate import role_views
from coe.serve.gate.board_routes import board_named
from coe.serve.gate.call_routes import picture_of
from coe.serve.gate.operations import Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown

router = PageRouter()


@dataclass(frozen=True, slots=True)
class Audited:
    """A blind audit with the newest word on it, None while it is open."""

    call: Call
    word: Verification | None


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
    of_board = role_views.calls_of(connection, inspected.id, visit.key)
    names = {call.refdes for call in of_board}
    recipe = recipe_versions.get(connection, inspected.recipe_id)
    seen = role_views.board_of(connection, inspected, visit.key)
    audits = [] if role_views.is_blind(visit.key) else blind.of_boards(connection, [inspected.id])
    words = verifications.of_calls(connection, [call.id for call in (*of_board, *audits)])
    newest = {word.call_id: word for word in words}
    fixes = repairs.of_calls(connection, [call.id for call in (*of_board, *audits)])
    return {
        "board": seen,
        "audits": [Audited(audit, newest.get(audit.id)) for audit in audits],
        "answers": {call.id: newest[call.id] for call in of_board if call.id in newest},
        "history": _history(seen, {call.id: call for call in (*of_board, *audits)}, words, fixes),
        "repairs": {word.call_id: word for word in fixes},
        "recipe": recipe,
        "units": role_views.units_of(seen, recipe, of_board),
        "calls": of_board,
        "good": [
            part
            for part in findings.unpack(board_rows.findings_of(connection, inspected.id))
            if part.refdes not in names
        ],
        **pictures_of(connection, inspected, of_board),
    }


def pictures_of(connection: Connection, board: Board, calls: Sequence[Call]) -> dict[str, Any]:
    """Return what pages draw of a board: its views, how its calls lie in them, and the outlines on the whole board."""
    views = {view.id: view for view in pictures.of_board(connection, board.key)}
    # What an audit shows may come from another board.
    views |= pictures.of_ids(connection, {call.view_id for call in calls if call.view_id is not None} - views.keys())
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
