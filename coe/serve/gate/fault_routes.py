"""Faults: read, clear. Law: clearing says that a person has seen it; the fault stays in the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from coe.serve.clock import iso
from coe.serve.database import audit, fault_log
from coe.serve.database.fault_log import Fault
from coe.serve.gate.operation_routes import ENGINEER, READ, Router, Visit, Whole
from coe.serve.gate.problems import not_found
from coe.strict_model import StrictModel

router = Router()

MOST = 500
"""The most faults in one answer."""


class FaultsQuery(StrictModel):
    """Which faults are listed."""

    all: Annotated[Whole, Field(ge=0, le=1, description="1: with those that were cleared")] = 0


@router.add("GET", "/api/v1/faults", READ, query=FaultsQuery, answers={200: "the faults"})
async def get_faults(visit: Visit) -> Mapping[str, Any]:
    """The open faults, the newest first."""

    def read(connection: Connection) -> Mapping[str, Any]:
        found = fault_log.newest(connection, limit=MOST) if visit.query.all else fault_log.open_faults(connection)
        return {"faults": [_row(fault) for fault in found[:MOST]]}

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


def _row(fault: Fault) -> dict[str, Any]:
    times = {name: iso(moment) if moment else None for name, moment in asdict(fault).items() if name.endswith("_us")}
    return {
        "fault": fault.id,
        "process": fault.process.value,
        "kind": fault.kind.value,
        "about": fault.about,
        "message": fault.message,
        "board": fault.board_id,
        "times": fault.times,
        "cleared_by": fault.cleared_by,
        **{name.removesuffix("_us"): moment for name, moment in times.items()},
    }
