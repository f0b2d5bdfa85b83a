"""`GET /api/v1/events`: events as they happen, as server-sent events. A client that comes back misses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import Field
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coe.helpers.strict_model import StrictModel
from coe.serve.clock import iso
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.event_log import newest_id
from coe.serve.database.tables import Event
from coe.serve.gate.access import admitted
from coe.serve.gate.operations import ANY, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind

router = OperationRouter()

ALIVE_S = 15.0
"""After this time without an event the client gets a comment, so that nobody considers the connection dead.

After each such time the gate also checks whether the client's key is still valid.
"""


class EventsQuery(StrictModel):
    """Where a stream of events begins."""

    after: Annotated[str | None, Field(description="the event that was seen last, if no header can be sent")] = None


@router.add(
    "GET",
    "/api/v1/events",
    ANY,
    query=EventsQuery,
    sends="text/event-stream",
    reads=("Last-Event-ID",),
    answers={200: "events", 409: "the event has not happened here", 429: "too many wait"},
)
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
    """Return whether the key or the session with which a stream was begun is still valid."""
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
