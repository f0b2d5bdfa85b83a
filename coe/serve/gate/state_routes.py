"""What the service does and what is wrong with it: health, drain and resume, faults, figures for Prometheus.

Ready means that worker and database answered; a drained service accepts nothing and loses nothing; a fault that a
person clears stays in the history.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coe.helpers.strict_model import StrictModel
from coe.serve.clock import SECOND_US, iso
from coe.serve.database import (
    audit,
    board_rows,
    call_rows,
    event_log,
    fault_log,
    hourly,
    recipe_versions,
    row_types,
    states,
)
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.event_log import newest_id
from coe.serve.database.tables import Event, Fault
from coe.serve.enums import FaultKind, Intake, LineState, Subject
from coe.serve.gate import access
from coe.serve.gate.access import admitted
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ANY, DIGITS, ENGINEER, READ, VERIFY, JsonForm, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, not_found

router = OperationRouter()
_M = TypeVar("_M", GaugeMetricFamily, CounterMetricFamily)

READY_S = 3.0  # the longest time until readiness is told, whatever hangs
MOST = 500  # the most faults in one answer
_FAULT = JsonForm(
    "Fault", Fault, "process kind about message times cleared_by raised_us seen_us cleared_us fault=id board=board_id"
)
_FAULTS = JsonForm("Faults", more={"faults": _FAULT.many})
_LIVE, _READY = JsonForm("Live", more={"live": bool}), JsonForm("Ready", more={"ready": bool})
_STATE = JsonForm("State", more={"intake": Intake, "line": LineState, "undecided": int})


@router.add("GET", "/health/live", None, query=None, sends=_LIVE)
async def live(visit: Visit) -> Mapping[str, Any]:
    """The gate answers."""
    return {"live": True}


@router.add("GET", "/health/ready", None, query=None, sends=_READY)
async def ready(visit: Visit) -> Mapping[str, Any]:
    """Line and database answer, boards are accepted."""
    gate = visit.gate
    asked = partial(why_not_ready, now_us=gate.now_us())
    # A disk that is known not to answer is not asked.
    if why := gate.faults.of_storage() or await gate.read(asked, READY_S):
        raise Problem(ProblemKind.NOT_READY, why, "see the faults, or wait")
    return {"ready": True}


def why_not_ready(connection: Connection, now_us: int) -> str:
    """Return why a board would not be decided now; empty if it would."""
    if states.living_worker(connection, now_us) is None:
        return "the line does not answer"
    if (state := states.line(connection)) not in (LineState.WAITING, LineState.RUNNING, LineState.HELD):
        return f"the line is {state}"
    active = recipe_versions.all_active(connection)
    failed = {one.about for one in fault_log.open_faults(connection) if one.kind is FaultKind.INSPECTOR_FAILED}
    if active and {f"{one.name} {one.version}" for one in active} <= failed:  # nobody needs a key to read this
        return "no active recipe can be opened; correct what the faults name, and the line opens it within 30 s"
    return states.why_closed(connection)


@router.read("/api/v1/state", READ, sends=_STATE)
def get_state(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get the state of gate and line."""
    return _STATE(
        intake=states.intake(connection), line=states.line(connection), undecided=board_rows.count_undecided(connection)
    )


@router.write("POST", "/api/v1/drain", ENGINEER, sends=_STATE)
def drain(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Stop accepting boards. The line finishes started boards; queued boards stay."""
    return _change(visit, connection, Intake.DRAINING, "drain")


@router.write("POST", "/api/v1/resume", ENGINEER, sends=_STATE)
def resume(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Accept boards again, unless a stop rule holds the line."""
    if why := fault_log.why_held(connection):
        raise Problem(ProblemKind.CONFLICT, why, "acknowledge the alarm first: /faults")
    return _change(visit, connection, Intake.OPEN, "resume")


def _change(visit: Visit, connection: Connection, state: Intake, action: str) -> Mapping[str, Any]:
    now_us = visit.gate.now_us()
    if states.change(connection, Subject.INTAKE, state, by=visit.caller, now_us=now_us):
        audit.append(connection, visit.caller, action, "intake", now_us=now_us)
    return get_state(visit, connection)


class FaultsQuery(StrictModel):
    """Which faults are listed."""

    all: Annotated[int, Field(ge=0, le=1, description="1: with those that were cleared"), DIGITS] = 0


@router.read("/api/v1/faults", READ, query=FaultsQuery, sends=_FAULTS)
def get_faults(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List open faults, newest first."""
    found = visit.gate.open_faults(connection)
    if visit.query.all:
        found = [*(one for one in found if not one.id), *fault_log.newest(connection, limit=MOST)]
    return _FAULTS(faults=[_FAULT(fault) for fault in found[:MOST]])


@router.write("POST", "/api/v1/faults/{id:int}/clear", VERIFY, status=204)
def clear(visit: Visit, connection: Connection) -> None:
    """Acknowledge an alarm; only engineers clear faults and alarms with `hold`."""
    now_us = visit.gate.now_us()
    fault = row_types.get(connection, Fault, visit.id)
    if fault is not None and fault.kind is not FaultKind.STOP_RULE:
        access.expect_role(visit.key, ENGINEER)
    if not fault_log.acknowledge(connection, visit.id, by=visit.caller, now_us=now_us):
        raise not_found(f"open fault {visit.id}", "see GET /api/v1/faults")
    audit.append(connection, visit.caller, "clear", f"fault {visit.id}", now_us=now_us)


@router.read("/metrics", ANY, sends="text/plain")
def get_metrics(visit: Visit, connection: Connection) -> Response:
    """Get metrics for Prometheus."""
    metrics = _metrics(connection, visit.gate)
    collector: Any = SimpleNamespace(collect=lambda: metrics)
    return Response(generate_latest(collector), media_type=CONTENT_TYPE_LATEST)


def _metrics(connection: Connection, gate: Gate) -> list[Metric]:
    """Return the figures; they come from the database at each scrape, so that no restart resets them."""
    now_us = gate.now_us()
    ages = {process: (now_us - beat.beat_us) / SECOND_US for process, beat in states.heartbeats(connection).items()}
    queues = event_log.queues(connection)
    waiting = {queue.sink: queue.waiting for queue in queues}
    oldest = {queue.sink: (now_us - queue.oldest_us) / SECOND_US if queue.oldest_us else 0.0 for queue in queues}
    decided, events = hourly.decisions(connection), event_log.newest_id(connection)
    undecided, open_calls = board_rows.count_undecided(connection), call_rows.count_open(connection)
    is_open, line = states.intake(connection) is Intake.OPEN, states.line(connection)
    disk = {"": gate.disk.free_share} if gate.disk else {}
    return [
        _counter("coe_boards_decided", "Boards by the verdict of their decision.", decided, "verdict"),
        _gauge("coe_boards_undecided", "Boards that wait for their decision.", {"": undecided}),
        _gauge("coe_calls_open", "Unanswered calls.", {"": open_calls}),
        _gauge("coe_faults_open", "Open faults.", {"": len(gate.open_faults(connection))}),
        _gauge("coe_disk_free_ratio", "Share of the disk of the data folder that is free.", disk),
        _counter("coe_events", "Events that were appended.", {"": events}),
        _gauge("coe_intake_open", "1 if boards are accepted.", {"": is_open}),
        _gauge("coe_line_state", "1 for the state of the line.", {line: 1}, "state"),
        _gauge("coe_outbox_waiting", "Undelivered events of a sink.", waiting, "sink"),
        _gauge("coe_outbox_oldest_seconds", "Age of the oldest such event.", oldest, "sink"),
        _gauge("coe_heartbeat_age_seconds", "Seconds since a process's last heartbeat.", ages, "process"),
    ]


def _metric(kind: type[_M], name: str, meaning: str, numbers: Mapping[Any, float], label: str = "") -> _M:
    metric = kind(name, meaning, labels=[label] if label else [])
    for value, number in numbers.items():
        metric.add_metric([str(value)] if label else [], number)
    return metric


_gauge, _counter = partial(_metric, GaugeMetricFamily), partial(_metric, CounterMetricFamily)


# `GET /api/v1/events`: events as they happen, as server-sent events. A client that comes back misses nothing.
ALIVE_S = 15.0
"""After this time without an event the client gets a comment, so that nobody considers the connection dead.

After each such time the gate also checks whether the client's key is still valid.
"""


class EventsQuery(StrictModel):
    """Where a stream of events begins."""

    after: Annotated[str | None, Field(description="the event that was seen last, if no header can be sent")] = None


@router.add("GET", "/api/v1/events", ANY, query=EventsQuery, sends="text/event-stream", reads="Last-Event-ID")
async def get_events(visit: Visit) -> Response:
    """Get server-sent events. `Last-Event-ID` resumes after the last event seen."""
    request = visit.request
    given = request.headers.get("last-event-id") or visit.query.after
    if given is not None and not (given.isascii() and given.isdecimal() and len(given) < 19):
        raise Problem(
            ProblemKind.BAD_REQUEST,
            f"{given[:100]!r} is not the id of an event",
            "send the `id` of the last event that you saw, or nothing",
        )
    newest = visit.gate.feed.last_id
    start = newest if given is None else int(given)
    if start > newest:
        newest = await visit.gate.read(newest_id)
    if start > newest:  # the client would wait for it, and miss all before it
        raise Problem(
            ProblemKind.CONFLICT,
            f"event {start} has not happened here; the newest is {newest}, so the history may be that of a backup",
            "read the boards again, and begin without `Last-Event-ID`",
        )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return _Stream(visit, start, headers)


class _Stream(StreamingResponse):
    def __init__(self, visit: Visit, start: int, headers: dict[str, str]) -> None:
        super().__init__(_events(visit, start), media_type="text/event-stream", headers=headers)
        self._visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._visit.gate.places.taken(self._visit.key):
            await super().__call__(scope, receive, send)


async def _events(visit: Visit, seen_id: int) -> AsyncIterator[str]:
    yield ": begins\n\n"
    now_s = asyncio.get_running_loop().time
    asked_s = now_s()
    while not visit.gate.feed.closed:
        events = await visit.gate.feed.after(seen_id, ALIVE_S)
        if now_s() - asked_s >= ALIVE_S:
            if not await _may_read(visit):
                return
            asked_s = now_s()
        if not events:
            yield ": alive\n\n"
        for event in events:
            yield _message(event)
            seen_id = event.id


async def _may_read(visit: Visit) -> bool:
    try:
        await admitted(visit.gate, visit.request, ANY)
    except DatabaseError:  # nobody knows now; the next time will tell
        return True
    except Problem:
        return False
    return True


def _message(event: Event) -> str:
    data = {"id": event.uuid, "kind": event.kind.value, "at": iso(event.happened_us), **event.body}
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
