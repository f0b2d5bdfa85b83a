"""Drain and resume. Law: a drained service accepts nothing and loses nothing; queued boards stay for later."""

from __future__ import annotations

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.serve.database import audit, board_rows, states
from coe.serve.gate.operation_routes import ENGINEER, READ, Operation, Visit
from coe.serve.gate.request_data import expect_query
from coe.serve.words import Intake, Subject


async def drain(visit: Visit) -> Response:
    """Accept no more boards; the line finishes those that it has begun."""
    return await _change(visit, Intake.DRAINING, "drain")


async def resume(visit: Visit) -> Response:
    """Accept boards again."""
    return await _change(visit, Intake.OPEN, "resume")


async def _change(visit: Visit, state: Intake, action: str) -> Response:
    expect_query(visit)
    gate = visit.gate

    def change(connection: Connection) -> bool:
        now_us = gate.now_us()
        changed = states.change(connection, Subject.INTAKE, state, by=visit.caller, now_us=now_us)
        if changed:
            audit.append(connection, visit.caller, action, "intake", now_us=now_us)
        return changed

    await gate.write(change)
    gate.wake_line()
    return await get_state(visit)


async def get_state(visit: Visit) -> Response:
    """Return the states of gate and line."""
    expect_query(visit)

    def read(connection: Connection) -> dict[str, object]:
        return {
            "intake": states.intake(connection).value,
            "line": states.line(connection).value,
            "undecided": board_rows.count_undecided(connection),
        }

    return JSONResponse(await visit.gate.read(read))


OPERATIONS = [
    Operation("GET", "/api/v1/state", "What gate and line do.", get_state, READ, answers={200: "the states"}),
    Operation(
        "POST",
        "/api/v1/drain",
        "Accept no more boards; the line finishes those that it has begun, and queued boards stay.",
        drain,
        ENGINEER,
        answers={200: "the states"},
    ),
    Operation("POST", "/api/v1/resume", "Accept boards again.", resume, ENGINEER, answers={200: "the states"}),
]
