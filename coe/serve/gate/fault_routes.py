"""Faults: read, clear. Law: clearing says that a person has seen it; the fault stays in the history."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.serve.database import audit, fault_log
from coe.serve.database.fault_log import Fault
from coe.serve.gate.operation_routes import ENGINEER, READ, Operation, Visit
from coe.serve.gate.problems import not_found
from coe.serve.gate.request_data import expect_query, id_of, whole_number_of
from coe.serve.moments import iso

MOST = 500
"""The most faults in one answer."""


async def get_faults(visit: Visit) -> Response:
    """Return the open faults; with `all`, also those that were cleared."""
    expect_query(visit, "all")
    with_cleared = whole_number_of(visit, "all", default=0, least=0, most=1) > 0

    def read(connection: Connection) -> list[dict[str, Any]]:
        shown = fault_log.newest(connection, limit=MOST) if with_cleared else fault_log.open_faults(connection)[:MOST]
        return [_row(fault) for fault in shown]

    return JSONResponse({"faults": await visit.gate.read(read)})


async def clear(visit: Visit) -> Response:
    """Clear an open fault."""
    expect_query(visit)
    gate, id = visit.gate, id_of(visit)

    def clear_it(connection: Connection) -> None:
        now_us = gate.now_us()
        if not fault_log.clear(connection, id, by=visit.caller, now_us=now_us):
            raise not_found(f"open fault {id}", "see GET /api/v1/faults")
        audit.append(connection, visit.caller, "clear", f"fault {id}", now_us=now_us)

    await gate.write(clear_it)
    return Response(status_code=int(HTTPStatus.NO_CONTENT))


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


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/faults",
        "The open faults, the newest first.",
        get_faults,
        READ,
        query={"all": "1: with those that were cleared"},
        answers={200: "the faults"},
    ),
    Operation(
        "POST",
        "/api/v1/faults/{id:int}/clear",
        "Clear a fault: a person has seen it.",
        clear,
        ENGINEER,
        answers={204: "cleared", 404: "no such open fault"},
    ),
]
