"""Faults: read, clear. Law: clearing says that a person has seen it; the fault stays in the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from coe.serve.database import audit, fault_log
from coe.serve.gate.operation_routes import ENGINEER, READ, Router, Visit, Whole
from coe.serve.gate.problems import not_found
from coe.serve.gate.request_data import shown
from coe.strict_model import StrictModel

router = Router()

MOST = 500
"""The most faults in one answer."""
_SHOWN = "process kind about message times cleared_by raised_us seen_us cleared_us"


class FaultsQuery(StrictModel):
    """Which faults are listed."""

    all: Annotated[Whole, Field(ge=0, le=1, description="1: with those that were cleared")] = 0


@router.add("GET", "/api/v1/faults", READ, query=FaultsQuery, answers={200: "the faults"})
async def get_faults(visit: Visit) -> Mapping[str, Any]:
    """The open faults, the newest first."""

    def read(connection: Connection) -> Mapping[str, Any]:
        found = fault_log.newest(connection, limit=MOST) if visit.query.all else fault_log.open_faults(connection)
        return {"faults": [shown(fault, _SHOWN, fault="id", board="board_id") for fault in found[:MOST]]}

    return await visit.gate.read(read)


@router.add("POST", "/api/v1/faults/{id:int}/clear", ENGINEER, answers={204: "cleared", 404: "no such open fault"})
async def clear(visit: Visit) -> None:
    """Clear a fault: a person has seen it."""
    gate, id = visit.gate, visit.id

    def clear_it(connection: Connection) -> None:
        now_us = gate.now_us()
        if not fault_log.clear(connection, id, by=visit.caller, now_us=now_us):
            raise not_found(f"open fault {id}", "see GET /api/v1/faults")
        audit.append(connection, visit.caller, "clear", f"fault {id}", now_us=now_us)

    await gate.write(clear_it)
