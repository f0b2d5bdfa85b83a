"""Whether the service lives, and whether it can decide boards. Law: ready means that line and database answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from coe.serve.clock import SECOND_US
from coe.serve.database import states
from coe.serve.enums import Intake, LineState, Process
from coe.serve.gate.operation_routes import Router, Visit
from coe.serve.gate.problems import Problem, ProblemKind

router = Router()

ALIVE_US = 10 * SECOND_US
"""A process whose last sign of life is older does not answer."""


@router.add("GET", "/v2/health/live", None, query=None, answers={200: "it does"})
async def live(visit: Visit) -> Mapping[str, Any]:
    """The gate answers."""
    return {"live": True}


@router.add("GET", "/v2/health/ready", None, query=None, answers={200: "they do", 503: "they do not"})
async def ready(visit: Visit) -> Mapping[str, Any]:
    """Line and database answer, and boards are accepted."""
    why = await visit.gate.read(lambda connection: why_not_ready(connection, visit.gate.now_us()))
    if why:
        raise Problem(ProblemKind.NOT_READY, why, "see the faults, or wait")
    return {"ready": True}


def why_not_ready(connection: Connection, now_us: int) -> str:
    """Return why a board would not be decided now; empty if it would."""
    beat = states.heartbeats(connection).get(Process.WORKER)
    if beat is None or abs(now_us - beat.beat_us) > ALIVE_US:
        return "the line does not answer"
    if (state := states.line(connection)) not in (LineState.WAITING, LineState.RUNNING):
        return f"the line is {state}"
    if states.intake(connection) is not Intake.OPEN:
        return "the service is draining"
    return ""
