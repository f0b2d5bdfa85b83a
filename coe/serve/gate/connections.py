"""A client's connection to the gate, and headers that every answer has.

A client that does nothing takes nothing from the others for long; a page loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import h11
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from coe.serve.gate.problems import MEDIA_TYPE, Problem, ProblemKind

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SafeHeaders:
    """Adds `HEADERS` to each answer that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; one that is cancelled, as when the gate ends, gets an answer before."""
        has_begun = scope["type"] != "http"

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            if not has_begun:
                way_out = "try again later, and see first whether this request was kept"
                problem = Problem(ProblemKind.DRAINING, "the service ends", way_out, {"Connection": "close"})
                await problem.response(Request(scope))(scope, receive, send_with_headers)
            raise


HEAD_S = 10.0
"""The longest time in which a client may send the head of a request."""
READ_S = 30.0
"""The gate disconnects a client that has read nothing of its answer for this time, or for twice this time at most."""
SURPLUS = 32
"""This many connections beyond the limit get an answer: it says so, unless a machine of the line asks."""
_RESERVED = ("/health/", "/api/v1/boards/")
"""Health, and the ways of feeders."""


class Connection(H11Protocol):
    """Closes itself if a request does not begin in time, or if an answer is not read: both would use up the gate.

    uvicorn itself closes connections that are idle after a request. Of too many connections, `SURPLUS` get the answer
    503, unless they are for health or boards; those beyond them are closed at once.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.limit_concurrency is not None
        # uvicorn would answer in plain text.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._waiting: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Begin, or refuse to begin."""
        super().connection_made(transport)
        if len(self.connections) > self._most + SURPLUS:
            transport.abort()
        elif len(self.connections) > self._most:
            self.app = partial(_reserved, self.app)
        self._waiting = self.loop.call_later(HEAD_S, self._too_slow)
        self._reading = self.loop.call_later(READ_S, self._expect_reader)

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        if self._waiting is not None and self._is_answering:
            self._waiting.cancel()
            self._waiting = None
        elif self._waiting is None and not self._is_answering:
            self._waiting = self.loop.call_later(HEAD_S, self._too_slow)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request with a problem, like every other refusal; uvicorn's answer is plain text."""
        problem = Problem(
            ProblemKind.BAD_REQUEST,
            "this is no request of HTTP/1.1, or its head is too long",
            "send a request of HTTP/1.1 with a shorter head",
        )
        headers = {**HEADERS, "Content-Type": MEDIA_TYPE, "Connection": "close"}
        start = h11.Response(status_code=400, headers=list(headers.items()), reason=problem.status.phrase)
        for event in (start, h11.Data(data=json.dumps(problem.body).encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        for timer in (self._waiting, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Go on with an answer of which the client has read a part."""
        super().resume_writing()
        self._unread_bytes = 0

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _too_slow(self) -> None:
        self._waiting = None
        if not self._is_answering and not self.transport.is_closing():
            self.transport.close()

    def _expect_reader(self) -> None:
        """Close the connection if the client has read nothing since the last look, whoever waits for it to end."""
        unread_bytes = self.transport.get_write_buffer_size()
        if 0 < self._unread_bytes <= unread_bytes:
            self.transport.abort()
            return
        self._unread_bytes = unread_bytes
        self._reading = self.loop.call_later(READ_S, self._expect_reader)


async def _reserved(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on a connection that is one too many, and close it unless a machine of the line asks."""
    if scope["path"].startswith(_RESERVED):
        await app(scope, receive, send)
        return
    problem = Problem(ProblemKind.BUSY, "too many connections are open", "close some of them, or try again later")
    problem.headers["Connection"] = "close"
    await SafeHeaders(problem.response(Request(scope)))(scope, receive, send)
