"""Drain and resume. Law: a drained service accepts nothing and loses nothing; queued boards stay for later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from coe.serve.database import audit, board_rows, states
from coe.serve.enums import Intake, Subject
from coe.serve.gate.operation_routes import ENGINEER, READ, Router, Visit

router = Router()


@router.add("POST", "/api/v1/drain", ENGINEER, answers={200: "the states"})
async def drain(visit: Visit) -> Mapping[str, Any]:
    """Accept no more boards; the line finishes those that it has begun, and queued boards stay."""
    return await _change(visit, Intake.DRAINING, "drain")


@router.add("POST", "/api/v1/resume", ENGINEER, answers={200: "the states"})
async def resume(visit: Visit) -> Mapping[str, Any]:
    """Accept boards again."""
    return await _change(visit, Intake.OPEN, "resume")


async def _change(visit: Visit, state: Intake, action: str) -> Mapping[str, Any]:
    gate = visit.gate

    def change(connection: Connection) -> bool:
        now_us = gate.now_us()
        changed = states.change(connection, Subject.INTAKE, state, by=visit.caller, now_us=now_us)
        if changed:
            audit.append(connection, visit.caller, action, "intake", now_us=now_us)
        return changed

    await gate.write(change)
    return await get_state(visit)


@router.add("GET", "/api/v1/state", READ, answers={200: "the states"})
async def get_state(visit: Visit) -> Mapping[str, Any]:
    """What gate and line do."""

    def read(connection: Connection) -> Mapping[str, Any]:
        return {
            "intake": states.intake(connection).value,
            "line": states.line(connection).value,
            "undecided": board_rows.count_undecided(connection),
        }

    return await visit.gate.read(read)
